"""The encoder against transformers' BertModel, and its adapter slots."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from polytask.adapters.base import Adapter, LayerAdapter
from polytask.encoders.bert import ACTIVATIONS, Bert, BertShape
from polytask.pretrained.config import SHAPE_KEYS, config_of
from polytask.pretrained.weights import empty_encoder, hugging_face_name, load_encoder
from polytask.stream import Layout, Stream
from polytask.text.packing import Packer, Part

MakeStream = Callable[..., Stream]
TINY = BertShape(layers=2, hidden=16, heads=2, ffn=24, vocabulary=50, positions=32)
TOLERANCE = 2e-5


def plain(layers: int) -> Adapter:
    return Adapter(LayerAdapter(), (LayerAdapter() for _ in range(layers)))


def shaken(module: nn.Module, std: float = 0.02) -> nn.Module:
    """Every weight moved, so that no bias is 0 and no norm is 1."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += std * torch.randn(parameter.shape, generator=generator)
    return module


def ragged(lengths: Sequence[int], vocabulary: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Token ids, and segments that change somewhere in each sequence."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(vocabulary, (length,), generator=generator) for length in lengths]
    cuts = [int(torch.randint(length + 1, (), generator=generator)) for length in lengths]
    segments = [(torch.arange(length) >= cut).long() for length, cut in zip(lengths, cuts, strict=True)]
    return ids, segments


def with_weights_of(theirs: Any, shape: BertShape) -> Bert:
    encoder = empty_encoder(shape)
    state = theirs.state_dict()
    encoder.load_state_dict({name: state[hugging_face_name(name)] for name in encoder.state_dict()})
    return encoder


@torch.no_grad()
def assert_same(encoder: Bert, theirs: Any, stream: Stream, ids: list[Tensor], segments: list[Tensor]) -> None:
    encoder.eval()
    theirs.eval()
    ours_TD = encoder.encode(stream, plain(encoder.shape.layers))
    pooled_SD = encoder.pool(ours_TD.index_select(0, stream.layout.cu_seqlens_S1[:-1]))
    pieces = ours_TD.split(list(stream.layout.lengths))
    for ours, pooled, row, segment in zip(pieces, pooled_SD, ids, segments, strict=True):
        expected = theirs(input_ids=row[None], token_type_ids=segment[None])
        assert (ours - expected.last_hidden_state[0]).abs().max() <= TOLERANCE
        assert (pooled - expected.pooler_output[0]).abs().max() <= TOLERANCE


def test_minilm_is_transformers_minilm(minilm: Path, make_stream: MakeStream) -> None:
    ids, segments = ragged([1, 2, 511, 512, 77, 250], 30522, seed=0)
    assert_same(load_encoder(minilm), BertModel.from_pretrained(minilm), make_stream(ids, segments), ids, segments)


def test_a_padded_batch_of_theirs_is_our_stream(minilm: Path, make_stream: MakeStream) -> None:
    ids, segments = ragged([3, 9, 1, 30], 30522, seed=2)
    padded = nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    types = nn.utils.rnn.pad_sequence(segments, batch_first=True)
    with torch.no_grad():
        expected = BertModel.from_pretrained(minilm).eval()(padded, mask, types).last_hidden_state[mask.bool()]
        ours_TD = load_encoder(minilm).eval().encode(make_stream(ids, segments), plain(6))
    assert (ours_TD - expected).abs().max() <= TOLERANCE


def test_bert_base_is_transformers_bert_base(make_stream: MakeStream) -> None:
    """Its widths and default options, three of its twelve equal layers, and its longest sequences."""
    ours = config_of(BertShape())
    assert {key: getattr(BertConfig(), key) for key in SHAPE_KEYS.values()} == {
        key: ours[key] for key in SHAPE_KEYS.values()
    }
    theirs = shaken(BertModel(BertConfig(num_hidden_layers=3)))
    ids, segments = ragged([2, 512, 1, 511], 30522, seed=3)
    assert_same(with_weights_of(theirs, BertShape(layers=3)), theirs, make_stream(ids, segments), ids, segments)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_have_the_names_of_transformers(activation: str, make_stream: MakeStream) -> None:
    shape = replace(TINY, activation=activation)
    theirs = shaken(BertModel(BertConfig(**config_of(shape))))
    ids, segments = ragged([5, 1, 17], 50, seed=4)
    assert_same(with_weights_of(theirs, shape), theirs, make_stream(ids, segments), ids, segments)


@pytest.fixture
def tiny() -> Bert:
    torch.manual_seed(0)
    encoder = shaken(Bert(TINY), std=0.2).eval()
    assert isinstance(encoder, Bert)
    return encoder


@torch.no_grad()
def test_the_order_of_sequences_does_not_matter(tiny: Bert, make_stream: MakeStream) -> None:
    ids, segments = ragged([4, 1, 30, 7, 7], 50, seed=1)
    order = [3, 0, 4, 2, 1]
    first = tiny.encode(make_stream(ids, segments), plain(2)).split([len(row) for row in ids])
    moved = make_stream([ids[i] for i in order], [segments[i] for i in order])
    second = tiny.encode(moved, plain(2)).split(list(moved.layout.lengths))
    for place, i in enumerate(order):
        torch.testing.assert_close(second[place], first[i], atol=1e-6, rtol=0)


@torch.no_grad()
def test_filler_changes_nothing(tiny: Bert) -> None:
    packer = Packer(tasks=("a", "b"), cls_id=1, sep_id=2, max_length=32)
    rng = np.random.default_rng(0)
    parts = [Part(task, [(rng.integers(3, 50, size=n),) for n in (3, 20, 1)]) for task in ("a", "b")]
    bare, filled = packer.pack(parts), packer.pack(parts, token_budget=128)
    assert len(bare.token_ids_T) < len(filled.token_ids_T) == 128
    expected = tiny.encode(bare, plain(2))
    torch.testing.assert_close(tiny.encode(filled, plain(2))[: len(expected)], expected, atol=1e-6, rtol=0)


@torch.no_grad()
def test_a_sequence_never_sees_another(tiny: Bert, make_stream: MakeStream) -> None:
    ids, segments = ragged([6, 12, 5], 50, seed=2)
    before = tiny.encode(make_stream(ids, segments), plain(2)).split([6, 12, 5])
    ids[1] = (ids[1] + 7) % 50
    after = tiny.encode(make_stream(ids, segments), plain(2)).split([6, 12, 5])
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])
    assert not torch.allclose(before[1], after[1], atol=1e-2)


def test_dropout_follows_torchs_seed(tiny: Bert, make_stream: MakeStream) -> None:
    stream = make_stream(*ragged([6, 12], 50, seed=2))

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return tiny.encode(stream, plain(2))

    assert torch.equal(run(1), run(2))  # eval mode: no dropout
    tiny.train()
    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


class Probe(LayerAdapter):
    """Records the input of each slot, and changes the output of one of them."""

    def __init__(self, log: dict[str, Tensor], change: str = "") -> None:
        super().__init__()
        self.log, self.change = log, change

    def _note(self, slot: str, x: Tensor, y: Tensor) -> Tensor:
        assert slot not in self.log, f"{slot} was called twice"
        self.log[slot] = x
        return 1.5 * y if slot == self.change else y

    def linear(self, site: Any, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        return self._note(f"linear.{site}", x_TD, base(x_TD))

    def attend(self, base: Any, q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout) -> Tensor:
        return self._note("attend", q_THd.flatten(1), base(q_THd, k_THd, v_THd, layout))

    def affine(self, site: Any, gamma_D: Tensor, beta_D: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return self._note(f"affine.{site}", gamma_D[None], gamma_D), beta_D

    def sublayer(self, site: Any, y_TD: Tensor, layout: Layout) -> Tensor:
        return self._note(f"sublayer.{site}", y_TD, y_TD)

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor | None:
        self._note("parallel", x_TD, x_TD)
        return x_TD if self.change == "parallel" else None

    def output(self, h_TD: Tensor, layout: Layout) -> Tensor:
        return self._note("output", h_TD, h_TD)


LAYER_SLOTS = [f"linear.{site}" for site in ("query", "key", "value", "attention_output", "up", "down")]
LAYER_SLOTS += ["attend", "affine.attention", "affine.ffn", "sublayer.attention", "sublayer.ffn", "parallel", "output"]


@torch.no_grad()
def test_slots_get_the_right_tensors(tiny: Bert, make_stream: MakeStream) -> None:
    stream = make_stream(*ragged([6, 12], 50, seed=2))
    first: dict[str, Tensor] = {}
    embedding: dict[str, Tensor] = {}
    h_TD = tiny.embed(stream, plain(2))
    out_TD = next(tiny.states(h_TD, stream.layout, plain(2)))
    tiny.encode(stream, Adapter(Probe(embedding), [Probe(first), LayerAdapter()]))
    assert set(embedding) == {"affine.embedding"}
    assert set(first) == set(LAYER_SLOTS)
    assert {name: x.shape[1] for name, x in first.items() if x.shape[1] != 16} == {"linear.down": 24}
    layer: Any = tiny.layers[0]
    for slot in ("linear.query", "linear.key", "linear.value", "parallel"):
        assert torch.equal(first[slot], h_TD)
    assert torch.equal(first["sublayer.attention"], layer.attention.output(first["linear.attention_output"]))
    assert torch.equal(first["attend"], layer.attention.query(h_TD))
    assert torch.equal(first["affine.attention"][0], layer.attention_norm.weight)
    assert torch.equal(first["linear.up"], layer.attention_norm(h_TD + first["sublayer.attention"]))
    assert torch.equal(first["sublayer.ffn"], layer.down(first["linear.down"]))
    assert torch.equal(first["affine.ffn"][0], layer.ffn_norm.weight)
    assert torch.equal(first["output"], layer.ffn_norm(first["linear.up"] + first["sublayer.ffn"]))
    assert torch.equal(first["output"], out_TD)


@torch.no_grad()
@pytest.mark.parametrize("slot", ["affine.embedding", *LAYER_SLOTS])
def test_the_output_of_a_slot_is_used(tiny: Bert, make_stream: MakeStream, slot: str) -> None:
    stream = make_stream(*ragged([6, 12], 50, seed=2))
    probes = [Probe({}, change=slot) for _ in range(3)]
    changed_TD = tiny.encode(stream, Adapter(probes[0], probes[1:]))
    assert not torch.allclose(changed_TD, tiny.encode(stream, plain(2)), atol=1e-2)


@torch.no_grad()
def test_an_adapter_that_changes_nothing_is_bit_identical(tiny: Bert, make_stream: MakeStream) -> None:
    stream = make_stream(*ragged([6, 12], 50, seed=2))
    probed = Adapter(Probe({}), [Probe({}), Probe({})])
    assert torch.equal(tiny.encode(stream, probed), tiny.encode(stream, plain(2)))
