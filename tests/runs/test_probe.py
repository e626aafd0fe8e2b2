"""How often probes are affordable: by the tokens of a probe and of the steps that pay for it."""

from pathlib import Path

import pytest

from polytask import Recipe, UserError, prepare, read_recipe, with_probes
from polytask.runs.probe import affordable
from polytask.runs.run import start_training

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


def recipe(tiny: list[str], *more: str) -> Recipe:
    return read_recipe(QUICKSTART, [*tiny, "train.epochs=100", *more])


def tokens_spent(made: Recipe, folder: Path, steps: int) -> tuple[float, float]:
    """Of a step on average, and of a probe."""
    session = start_training(made, folder).session
    train = [len(session.feed.next_batch(session.sampler.next_step()).together.token_ids_T) for _ in range(steps)]
    size = made.train.batch_size
    probe = [len(session.feed.draw(task, size, "interference", n).token_ids_T) for task in made.tasks for n in (1, 2)]
    return made.train.accumulate * sum(train) / steps, sum(probe) / 2


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["train.accumulate=2"],
        ["sampler={name: weights, weights: {opinion: 20, question: 1, similarity: 1}}"],  # the shortest texts
        ["sampler={name: mixed}"],
    ],
)
def test_a_probe_costs_a_tenth_of_the_steps_between(tmp_path: Path, tiny_settings: list[str], more: list[str]) -> None:
    made = with_probes(recipe(tiny_settings, *more))
    step, probe = tokens_spent(made, tmp_path / "run", 60)
    assert made.train.interference_every is not None
    assert 1.5 * probe / (made.train.interference_every * step) == pytest.approx(0.1, rel=0.12)


def test_what_was_asked_for_comes_first(tiny_settings: list[str]) -> None:
    assert with_probes(recipe(tiny_settings), 7).train.interference_every == 7
    own = recipe(tiny_settings, "train.interference_every=9")
    assert with_probes(own).train.interference_every == 9
    assert with_probes(own, 7).train.interference_every == 7


def test_invalid_fields_are_refused(tiny_settings: list[str]) -> None:
    with pytest.raises(UserError, match="a tenth of the time of 20 steps allows 0 probes"):
        affordable(prepare(read_recipe(QUICKSTART, tiny_settings)))
    task = "{kind: classes, text: text, label: opinion, train: 'sample:opinions-train', dev: 'sample:opinions-dev'}"
    with pytest.raises(UserError, match="tasks: interference needs two or more trained tasks, found 1"):
        with_probes(read_recipe(QUICKSTART, [*tiny_settings, f"tasks={{opinion: {task}}}"]))
    with pytest.raises(UserError, match=r"train\.interference_every: must be in \[1, 1000000000\], found 0"):
        recipe(tiny_settings, "train.interference_every=0")
