"""The penalties as functions around any model: equal to the regularizers' own, and usable with padding."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from polytask.losses.base import symmetric_distance
from polytask.regularizers import bregman, lnsr, r_drop, smart
from polytask.regularizers.bregman import Bregman
from polytask.regularizers.lnsr import Lnsr
from polytask.regularizers.r_drop import RDrop
from polytask.regularizers.smart import Ascent, Smart
from polytask.types import UserError


@pytest.fixture
def topic(tiny_model: Any, tiny_stream: Any) -> tuple[Any, Any]:
    """A model with dropout, and a stream of two sequences of the same length: a batch [B, L, D] without padding."""
    for seed in range(1000):
        stream = tiny_stream(["topic"], count=2, seed=seed)
        if len(set(stream.layout.lengths)) == 1:
            return tiny_model(dropout=0.2), stream
    raise AssertionError("no such stream")


@pytest.mark.parametrize("options", [{}, {"steps": 3, "epsilon": 0.1}, {"mode": "mtdnn", "eta": 10.0}], ids=str)
@pytest.mark.parametrize("fixed_targets", [False, True])
def test_smart(
    options: Any, fixed_targets: bool, topic: Any, make_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The two draw their noise at different times, so it is fixed.
    monkeypatch.setattr(torch, "randn_like", lambda x: torch.linspace(-1, 2, x.shape[-1]).expand_as(x))
    model, stream = topic
    torch.manual_seed(0)
    run = model.run(stream)
    expected = Smart(make_context(model), fixed_targets=fixed_targets, **options).penalty(model, run)

    def forward(words_BLD: Tensor) -> Tensor:
        outputs: Tensor = model(stream, words_BLD.flatten(0, 1))["topic"]
        return outputs

    words_BLD = model.encoder.words(stream.token_ids_T).unflatten(0, (2, -1))
    torch.manual_seed(0)
    outputs, found = smart.penalty_of(forward, words_BLD, ascent=Ascent(**options), fixed_targets=fixed_targets)
    assert torch.equal(outputs, run.outputs["topic"])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    parameters = list(model.encoder.parameters())
    gradients = [torch.autograd.grad(penalty, parameters, allow_unused=True) for penalty in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_r_drop_and_bregman(topic: Any, make_context: Any) -> None:
    model, stream = topic
    torch.manual_seed(0)
    run = model.run(stream)
    state = torch.get_rng_state()
    expected = RDrop(make_context(model)).penalty(model, run)
    torch.set_rng_state(state)
    assert torch.equal(r_drop.penalty_of(run.outputs["topic"], model(stream)["topic"]), expected)
    regularizer = Bregman(make_context(model, steps=10))
    average, followers = bregman.running_average(model, lambda step: 0.01 if step == 1 else 0.001)
    for step in (1, 2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        regularizer.after_step(model, step)
        followers.move(step)
    targets = average(stream)["topic"]
    assert not targets.requires_grad
    run = model.run(stream)
    assert torch.equal(bregman.penalty_of(run.outputs["topic"], targets), regularizer.penalty(model, run))


def test_lnsr(topic: Any, make_context: Any) -> None:
    model, stream = topic
    torch.manual_seed(0)
    run = model.run(stream)
    torch.manual_seed(1)
    expected = Lnsr(make_context(model), lambdas=(1.0, 0.5), share=0.2, dropout="off").penalty(model, run)

    def layers(x_BLD: Tensor) -> list[Tensor]:
        states = model.encoder.states(x_BLD.flatten(0, 1), stream.layout, model.adapter)
        return [state.unflatten(0, x_BLD.shape[:2]) for state in states]

    model.eval()
    embedded_BLD = model.encoder.embed(stream, model.adapter).unflatten(0, (2, -1))
    torch.manual_seed(1)
    states, found = lnsr.penalty_of(layers, embedded_BLD, lambdas=(1.0, 0.5), share=0.2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    assert len(states) == 2
    model.train()
    assert lnsr.penalty_of(layers, embedded_BLD, share=0.0)[1].item() == 0  # both passes have the same dropout


@pytest.fixture
def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(**sizes, vocab_size=50, num_labels=3, initializer_range=0.2))


IDS = torch.tensor([[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]])
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


@pytest.mark.parametrize("mode", ["paper", "mtdnn"])
def test_smart_with_a_padded_batch_of_transformers(mode: Any, bert: BertForSequenceClassification) -> None:
    seen: list[Tensor] = []

    def forward(words_BLD: Tensor) -> Tensor:
        seen.append(words_BLD.detach())
        logits: Tensor = bert(inputs_embeds=words_BLD, attention_mask=MASK).logits
        return logits

    words_BLD = bert.bert.embeddings.word_embeddings(IDS)
    outputs, penalty = smart.penalty_of(forward, words_BLD, mask_BL=MASK, ascent=Ascent(mode, epsilon=0.1, eta=1.0))
    assert len(seen) == 3
    changed_BL = (seen[-1] - seen[0]).abs().amax(-1) > 0
    assert torch.equal(changed_BL, MASK.bool())
    assert penalty.item() > 0
    bert.zero_grad()
    penalty.backward()
    assert bert.classifier.weight.grad is not None
    assert outputs.shape == (2, 3)
    calm = smart.penalty_of(forward, words_BLD, mask_BL=MASK, ascent=Ascent(epsilon=1e-12))[1]
    assert calm.item() < 1e-6  # the dropout of all passes is the same


def test_padding_has_no_part_in_lnsr() -> None:
    linear = nn.Linear(8, 8)
    x_BLD = torch.randn(2, 5, 8)

    def layers(x_BLD: Tensor) -> list[Tensor]:
        return [linear(x_BLD)]

    torch.manual_seed(3)
    masked = lnsr.penalty_of(layers, x_BLD, mask_BL=MASK)[1]
    x_BLD[MASK == 0] = 1e6
    torch.manual_seed(3)
    assert torch.equal(lnsr.penalty_of(layers, x_BLD, mask_BL=MASK)[1], masked)


@pytest.mark.parametrize("kind", ["yes_no", "score"])
def test_other_kinds_of_outputs(kind: Any) -> None:
    linear = nn.Linear(8, 1)
    outputs, penalty = smart.penalty_of(
        lambda x_BLD: linear(x_BLD.mean(1))[:, 0], torch.randn(4, 3, 8), kind, ascent=Ascent(epsilon=1.0, eta=0.5)
    )
    assert outputs.shape == (4,)
    assert penalty.item() > 0
    second = outputs + 0.1
    assert torch.equal(r_drop.penalty_of(outputs, second, kind), symmetric_distance(outputs, second, kind))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_dropout_is_replayed_on_a_gpu(bert: BertForSequenceClassification) -> None:
    bert.cuda()
    words_BLD, mask = bert.bert.embeddings.word_embeddings(IDS.cuda()), MASK.cuda()

    def forward(words_BLD: Tensor) -> Tensor:
        logits: Tensor = bert(inputs_embeds=words_BLD, attention_mask=mask).logits
        return logits

    calm = smart.penalty_of(forward, words_BLD, mask_BL=mask, ascent=Ascent(epsilon=1e-12))[1]
    assert calm.item() < 1e-6


def test_arguments_that_do_not_fit() -> None:
    outputs = torch.zeros(2, 3)
    with pytest.raises(UserError, match=r"kind: there is no kind 'clases' \(did you mean classes\?"):
        r_drop.penalty_of(outputs, outputs, "clases")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="mode: there is no mode 'fast'"):
        Ascent(mode="fast")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="lambdas: must have 1 numbers, one for each of the layers, found 2"):
        lnsr.penalty_of(lambda x: [x], torch.ones(1, 2, 4), lambdas=(1.0, 0.5))
