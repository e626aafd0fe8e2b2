"""The padded graph computes what the packed model does, for every adapter, every encoder and every kind of head."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polytask.adapters import ADAPTERS
from polytask.export.onnx_folder import padded_inputs
from polytask.export.padded import INPUTS, PaddedLayout, PaddedModel, unsupported
from polytask.fused_forms import FUSED_FORMS, only_definitions
from polytask.pretrained.kinds import KINDS
from polytask.runs.bundle import Bundle, load_bundle

SMALL = {
    "pal": "{name: pal, size: 12, heads: 3}",
    "stack": "{name: stack, adapters: [low_rank, lora, prefix]}",
    "shared": "{name: shared, adapter: {name: prefix}}",
}
SHAPE = "layers: 3, hidden: 32, heads: 4, ffn: 64, positions: 128"
TEXTS = {
    "opinion": [("Not bad at all.",), ("ok",), ("I want my money back, now! " * 4,)],
    "question": [("How old is it?", "What is its age?"), ("a", "b c d")],
    "similarity": [("A cat sits on the mat.", "A dog sits."), ("a", "b")],
}


def check(folder: Path) -> None:
    bundle = load_bundle(folder / "model")
    model = bundle.model
    texts = {task: len(spec.text) for task, spec in bundle.specs.items()}
    padded = PaddedModel(model, model.tasks, texts).eval()
    for task in model.tasks:
        tokens = bundle.tokenize(TEXTS[task])
        (batch,) = model.batches(task, tokens, bundle.packer)
        _, columns = padded_inputs(batch.stream)
        with torch.inference_mode(), only_definitions():
            found = padded(*(torch.from_numpy(columns[name]) for name in INPUTS))[model.tasks.index(task)]
        expected = model.answer(task, tokens, bundle.packer)[torch.from_numpy(batch.indices)]
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter(name: str, make_run: Any) -> None:
    check(make_run("run", (f"adapter={SMALL.get(name, name)}", "tasks.similarity.head=joint")))


@pytest.mark.parametrize("kind", KINDS)
def test_every_encoder(kind: str, make_run: Any) -> None:
    more = ", window: 8" if kind == "modernbert" else ""
    heads = ("tasks.opinion.head={name: linear, pooling: pooler}", "tasks.question.head={name: cross, pooling: first}")
    check(make_run("run", (f"encoder={{kind: {kind}, {SHAPE}{more}}}", *heads, "adapter=prefix")))


@pytest.mark.parametrize(("rows", "pairs", "triples"), [(7, 4, 3), (6, 3, 2), (1, 1, 1)])
def test_any_number_of_rows_can_be_computed(rows: int, pairs: int, triples: int, make_run: Any) -> None:
    bundle = load_bundle(make_run("run", ("tasks.similarity.head=joint",)) / "model")
    padded = PaddedModel(bundle.model, bundle.model.tasks, {t: len(s.text) for t, s in bundle.specs.items()}).eval()
    ids = torch.full((rows, 5), 7)
    with torch.inference_mode(), only_definitions():
        outputs = padded(ids, torch.ones_like(ids), torch.zeros_like(ids))
    assert [tuple(output.shape) for output in outputs] == [(rows, 5), (pairs,), (triples,)]
    assert all(output.isfinite().all() for output in outputs)


def test_positions_and_prefix_of_a_padded_layout() -> None:
    layout = PaddedLayout.of(torch.tensor([[1, 1, 1], [1, 0, 0]]).bool(), 1)
    assert layout.tasks == (1,)
    assert layout.positions(6).tolist() == [0, 1, 2, 0, 1, 2]
    assert layout.sequence_indices(6).tolist() == [0, 0, 0, 1, 1, 1]
    longer = layout.with_prefix(2)
    assert (longer.prefix, longer.tasks) == (2, (1,))
    assert longer.mask.int().tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    np.testing.assert_array_equal(longer.cu_seqlens_S1, [0, 5, 10])


def test_fused_forms_come_back() -> None:
    before = dict(FUSED_FORMS)
    with only_definitions():
        assert not FUSED_FORMS
    assert before == FUSED_FORMS


def test_plain_text_has_no_output(make_run: Any) -> None:
    bundle: Bundle = load_bundle(make_run("run") / "model")
    head = bundle.model.head("opinion")
    assert unsupported(head) is None
    head.pooling = None
    assert "only heads that pool or tag are supported" in str(unsupported(head))
