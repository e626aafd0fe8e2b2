"""The ranking loss as sentence-transformers writes it, with false negatives left out."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kinds.in_batch import false_negatives
from polytask.model import MultiTaskModel
from polytask.regularizers.in_batch_negatives import InBatchNegatives, text_hashes
from polytask.stream import Reading
from polytask.text.packing import Packer, Part
from polytask.types import UserError

SEPARATE = {"topic": "linear", "same": "cosine", "alike": "bi"}
PACKER = Packer(("topic", "same", "alike"), 2, 3, 24)
Pairs = list[tuple[list[int], list[int]]]


def random_pairs(count: int, seed: int = 0) -> Pairs:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(5, 60, rng.integers(2, 9)).tolist() for _ in range(2)) for _ in range(count)]


def part(task: str, pairs: Pairs, labels: list[float], reading: Reading = "separate") -> Part:
    return Part(task, [tuple(map(np.array, pair)) for pair in pairs], reading, np.array(labels, dtype=np.float32))


def vectors(model: MultiTaskModel, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Encode each text separately and take the mean over its tokens."""
    found = []
    for side in range(2):
        means = []
        for pair in pairs:
            stream = PACKER.pack([Part("topic", [(np.array(pair[side]),)])])
            means.append(model.encoder.encode(stream, model.adapter).mean(0))
        found.append(torch.stack(means))
    return found[0], found[1]


def ranking(u: Tensor, v: Tensor, positive: list[int], left_out: dict[int, list[int]] | None = None) -> Tensor:
    """-log of the softmax's share of the right answer, row by row."""
    losses = []
    for i in positive:
        scores = [20 * F.cosine_similarity(u[i], v[j], dim=0) for j in range(len(v))]
        kept = [s for j, s in enumerate(scores) if j not in (left_out or {}).get(i, [])]
        losses.append(torch.stack(kept).logsumexp(0) - scores[i])
    return torch.stack(losses).mean()


def test_all_positive_is_multiple_negatives_ranking(tiny_model: Any, make_context: Any) -> None:
    model = tiny_model(heads=SEPARATE, dropout=0.0)
    pairs = random_pairs(6)
    value = InBatchNegatives(make_context(model), weight=0.5).penalty(
        model, model.run(PACKER.pack([part("same", pairs, [1] * 6)]))
    )
    u, v = vectors(model, pairs)
    scores = 20 * F.normalize(u, dim=1) @ F.normalize(v, dim=1).T  # util.cos_sim(a, b) * scale
    torch.testing.assert_close(value, 0.5 * F.cross_entropy(scores, torch.arange(6)), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(value, 0.5 * ranking(u, v, list(range(6))), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("task", "labels"), [("same", [1, 0, 1, 0]), ("alike", [0.8, 0.79, 1.0, 0.0])])
def test_other_pairs_are_candidates_but_ask_nothing(
    tiny_model: Any, make_context: Any, task: str, labels: list[float]
) -> None:
    model = tiny_model(heads=SEPARATE, dropout=0.0)
    pairs = random_pairs(4)
    value = InBatchNegatives(make_context(model)).penalty(model, model.run(PACKER.pack([part(task, pairs, labels)])))
    torch.testing.assert_close(value, ranking(*vectors(model, pairs), [0, 2]), atol=1e-5, rtol=1e-4)


def test_a_joint_head_has_the_texts_of_a_cosine_head(tiny_model: Any, make_context: Any) -> None:
    pairs: Pairs = [*random_pairs(4), ([5, 6], [7, 8]), ([9, 10], [7, 8])]
    cosine, joint = (tiny_model(heads={**SEPARATE, "same": head}, dropout=0.0) for head in ("cosine", "joint"))
    joint.encoder.load_state_dict(cosine.encoder.state_dict())

    def value(model: MultiTaskModel, static_shape: bool = False) -> Tensor:
        whole = part("same", pairs, [1, 1, 0, 1, 1, 1], model.head("same").reading)
        stream = PACKER.pack([whole], static_shape=static_shape)
        return InBatchNegatives(make_context(model), symmetric=True).penalty(model, model.run(stream))

    torch.testing.assert_close(value(joint), value(cosine), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(value(joint, static_shape=True), value(cosine), atol=1e-5, rtol=1e-4)


def test_repeated_texts_are_no_negatives(tiny_model: Any, make_context: Any) -> None:
    model = tiny_model(heads=SEPARATE, dropout=0.0)
    a, b, c, d, e = ([10 * i, 10 * i + 1, 7] for i in range(1, 6))
    pairs: Pairs = [
        (a, b),
        (c, b),  # the same answer as row 0
        (a, d),  # another right answer to row 0's question
        (a, e),  # a wrong one, labelled so: it stays
        (d, a),  # row 0's question itself
    ]
    value = InBatchNegatives(make_context(model)).penalty(
        model, model.run(PACKER.pack([part("same", pairs, [1, 1, 1, 0, 1])]))
    )
    left_out = {0: [1, 2, 4], 1: [0], 2: [0, 1, 4], 4: [2]}
    expected = ranking(*vectors(model, pairs), [0, 1, 2, 4], left_out)
    torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-4)


def test_texts_by_number() -> None:
    texts = [[5, 6], [6, 5], [5, 6, 0], [5, 6], [0], [0, 0], [7], [5, 6, 7, 8]]
    stream = PACKER.pack(
        [
            Part("topic", [(np.array(text),) for text in texts]),
            part("same", [([5, 6], [7])], [1.0]),
        ],
        token_budget=80,
    )
    found = text_hashes(stream)[: len(texts) + 2].tolist()
    expected = [*map(tuple, texts), (5, 6), (7,)]
    for i, one in enumerate(expected):
        for j, other in enumerate(expected):
            assert (found[i] == found[j]) == (one == other)


def test_own_answer_is_always_there() -> None:
    """Even where a question and its answer are the same text."""
    same = torch.tensor([4, 4, 4])
    left_out = false_negatives(same, same, torch.tensor([True, True, True]))
    assert left_out.tolist() == [[False, True, True], [True, False, True], [True, True, False]]


def test_symmetric_is_the_mean_of_both_ways(tiny_model: Any, make_context: Any) -> None:
    model = tiny_model(heads=SEPARATE, dropout=0.0)
    pairs: Pairs = [*random_pairs(4), ([5, 6], [7, 8]), ([9, 10], [7, 8])]
    labels = [1.0, 1, 0, 1, 1, 1]
    swapped: Pairs = [(v, u) for u, v in pairs]

    def value(given: Pairs, **options: Any) -> Tensor:
        return InBatchNegatives(make_context(model), **options).penalty(
            model, model.run(PACKER.pack([part("same", given, labels)]))
        )

    torch.testing.assert_close(value(pairs, symmetric=True), (value(pairs) + value(swapped)) / 2)
    assert (value(pairs) - value(swapped)).abs() > 1e-3


def test_nothing_positive_nothing_asked(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model(heads=SEPARATE)
    regularizer = InBatchNegatives(make_context(model))
    value = regularizer.penalty(model, model.run(PACKER.pack([part("same", random_pairs(3), [0, 0, 0])])))
    assert value.item() == 0
    value.backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    assert regularizer.penalty(model, model.run(tiny_stream(["topic"]))).item() == 0


def test_mixed_streams_add_up_and_bf16_is_close(tiny_model: Any, make_context: Any) -> None:
    model = tiny_model(heads=SEPARATE, dropout=0.0)
    regularizer = InBatchNegatives(make_context(model, alike=25.0))
    parts = [part("same", random_pairs(4), [1, 1, 0, 1]), part("alike", random_pairs(3, 1), [0.9, 0.1, 1.0])]
    alone = [regularizer.penalty(model, model.run(PACKER.pack([one]))) for one in parts]
    both = model.run(PACKER.pack(parts, token_budget=200))
    torch.testing.assert_close(regularizer.penalty(model, both), alone[0] + alone[1], atol=1e-5, rtol=1e-4)
    chosen = InBatchNegatives(make_context(model), tasks=("alike",)).penalty(model, both)
    torch.testing.assert_close(chosen, alone[1], atol=1e-5, rtol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        rough = regularizer.penalty(model, model.run(PACKER.pack(parts)))
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx((alone[0] + alone[1]).item(), rel=0.1)


def test_partners_come_nearer_than_the_others(tiny_model: Any, make_context: Any) -> None:
    model = tiny_model(heads=SEPARATE)
    regularizer = InBatchNegatives(make_context(model))
    pairs = random_pairs(8)
    stream = PACKER.pack([part("same", pairs, [1] * 8)])
    optimizer = torch.optim.Adam(model.encoder.parameters(), lr=3e-3)

    def ranks() -> tuple[float, float]:
        """How much closer partners are than others, and how often a partner is the closest."""
        with torch.inference_mode():
            u, v = vectors(model.eval(), pairs)
        cos = F.normalize(u, dim=1) @ F.normalize(v, dim=1).T
        others = (cos.sum() - cos.trace()) / (8 * 7)
        return (cos.trace() / 8 - others).item(), (cos.argmax(1) == torch.arange(8)).float().mean().item()

    before = ranks()
    torch.manual_seed(0)
    model.train()
    for _ in range(60):
        optimizer.zero_grad()
        regularizer.penalty(model, model.run(stream)).backward()
        optimizer.step()
    after = ranks()
    assert after[0] > before[0] + 0.3
    assert after[1] == 1 > before[1]


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        (
            {**SEPARATE, "same": "cross", "alike": "cross"},
            {},
            "no task can be used: .* head encodes the texts of a pair separately",
        ),
        (SEPARATE, {"tasks": ("topic",)}, r"tasks: there is no pair task .* 'topic'.*Valid: alike, same"),
    ],
)
def test_refused(tiny_model: Any, make_context: Any, heads: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        InBatchNegatives(make_context(tiny_model(heads=heads)), **options)
