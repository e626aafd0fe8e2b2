"""Adapters that are merged into the encoder: the same answers without an adapter, or a reason."""

from pathlib import Path
from typing import Any

import pytest
import torch

from polytask import UserError, load
from polytask.export.merge import export_merged
from polytask.runs.bundle import load_bundle

TEXTS = {
    "opinion": (["Not bad at all.", "I want my money back", "ok"],),
    "question": (["How old is it?", "a"], ["What is its age?", "b c d"]),
    "similarity": (["A cat sits.", "a"], ["A dog sits.", "b c d"]),
}
MERGED = [
    "{name: lora, sites: [query, key, value, attention_output, up, down]}",
    "bitfit",
    "ia3",
    "conditional_norm",
    "lhuc",
    "own_encoder",
    "{name: stack, adapters: [lora, ia3, conditional_norm]}",
]


def outputs(run: Path, task: str) -> torch.Tensor:
    return torch.cat(list(load(run).outputs(task, list(zip(*TEXTS[task], strict=True)))))


@pytest.mark.parametrize("adapter", MERGED)
def test_one_task_gives_the_same_answers_without_an_adapter(adapter: str, make_run: Any, tmp_path: Path) -> None:
    run = make_run("run", (f"adapter={adapter}",))
    for task in ("opinion", "similarity"):
        target = export_merged(run, tmp_path / task, task)
        assert load_bundle(target).model.is_plain
        assert list(load_bundle(target).specs) == [task]
        torch.testing.assert_close(outputs(target, task), outputs(run, task), atol=2e-5, rtol=1e-5)


def test_a_shared_adapter_is_merged_for_all_tasks(make_run: Any) -> None:
    run = make_run("run", ("adapter={name: shared, adapter: {name: lora}}",))
    target = export_merged(run)
    assert target == run / "merged"
    for task in TEXTS:
        torch.testing.assert_close(outputs(target, task), outputs(run, task), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        ("{name: pal, size: 12, heads: 3}", "it has a branch of its own parallel to the encoder's layers"),
        ("houlsby", "it has layers of its own inside the encoder's layers"),
        ("{name: houlsby, position: after_norm}", "it changes the output of the encoder's layers"),
        ("prefix", "it changes what attention reads"),
    ],
)
def test_what_cannot_be_merged_is_refused_with_a_reason(adapter: str, reason: str, make_run: Any) -> None:
    run = make_run("run", (f"adapter={adapter}",))
    with pytest.raises(UserError, match=f"cannot be merged into the encoder: {reason}"):
        export_merged(run, task="opinion")
    assert not (run / "merged-opinion").exists()


def test_several_tasks_with_their_own_adapters_need_a_choice(make_run: Any) -> None:
    with pytest.raises(UserError, match="pass --task to merge one of: opinion, question, similarity"):
        export_merged(make_run("run", ("adapter=lora",)))
    with pytest.raises(UserError, match="there is no task 'mood'"):
        export_merged(make_run("other", ("adapter=lora",)), task="mood")
