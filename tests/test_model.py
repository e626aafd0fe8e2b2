"""The whole model: one pass for every task, any order of examples, and the count of its parameters."""

from pathlib import Path

import numpy as np
import pytest
import torch

from polytask import Finished, load
from polytask.text.packing import Part


def test_answers_come_back_in_order_whatever_the_batches(tiny_run: Finished) -> None:
    bundle = load(tiny_run.folder, "cpu").bundle
    rng = np.random.default_rng(0)
    texts = [(rng.integers(5, 1000, n), rng.integers(5, 1000, m)) for n, m in rng.integers(1, 60, (40, 2))]
    model, packer = bundle.model, bundle.packer
    one_by_one = torch.cat([model.answer("question", [pair], packer) for pair in texts])
    for budget in (64, 500, 10**6):
        torch.testing.assert_close(model.answer("question", texts, packer, budget), one_by_one, atol=1e-5, rtol=0)


def test_answering_leaves_the_model_as_it_was(tiny_run: Finished) -> None:
    bundle = load(tiny_run.folder, "cpu").bundle
    bundle.model.train()
    bundle.model.answer("opinion", [(np.array([7, 8]),)], bundle.packer)
    assert bundle.model.training


def test_one_pass_answers_all_tasks(tiny_run: Finished) -> None:
    bundle = load(tiny_run.folder, "cpu").bundle
    pair = (np.array([7, 8, 9]), np.array([10]))
    parts = [Part(task, [pair], bundle.model.head(task).reading) for task in ("similarity", "question")]
    parts.insert(1, Part("opinion", [(np.array([11, 12]),)]))
    with torch.inference_mode():
        together = bundle.model(bundle.packer.pack(parts))
        for part in parts:
            alone = bundle.model(bundle.packer.pack([part]))
            assert set(alone) == {part.task}
            torch.testing.assert_close(together[part.task], alone[part.task], atol=1e-6, rtol=0)


def test_word_vectors_can_be_given(tiny_run: Finished) -> None:
    bundle = load(tiny_run.folder, "cpu").bundle
    stream = bundle.packer.pack([Part("opinion", [(np.array([7, 8, 9]),)])])
    words = bundle.model.encoder.words(stream.token_ids_T)
    with torch.inference_mode():
        torch.testing.assert_close(bundle.model(stream, words), bundle.model(stream))
        assert not torch.equal(bundle.model(stream, words + 0.1)["opinion"], bundle.model(stream)["opinion"])


def test_budget_adds_up(tiny_run: Finished) -> None:
    budget = load(tiny_run.folder, "cpu").bundle.model.budget()
    assert budget["encoder"] + budget["adapter_shared"] + sum(budget["per_task"].values()) == budget["total"]
    assert budget["per_task"] == {"opinion": 5 * 32 + 5, "question": 2, "similarity": 0}  # two are cosines


@pytest.mark.parametrize("heights", [range(4)])
def test_parts_cover_every_parameter_once_from_bottom_to_top(tiny_run: Finished, heights: range) -> None:
    model = load(tiny_run.folder, "cpu").bundle.model
    parts = list(model.parts())
    names = [f"{name}.{key}" for name, _, module in parts for key, _ in module.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert {height for _, height, _ in parts} == set(heights)


def test_the_models_folder_has_no_machine_in_it(tiny_run: Finished) -> None:
    for path in (tiny_run.folder / "model").glob("*.json"):
        assert str(Path.home()) not in path.read_text(encoding="utf-8")
