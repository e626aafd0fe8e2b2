"""Every method of the tables in captured steps: a replay gives what its Python gives, and what a plain step gives.

On the CPU, steps are recorded (`recorded_graphs.py`) instead of captured; on a GPU they are captured.
"""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from polytask import prepare, read_recipe
from polytask.encoders.bert import Attention
from polytask.optim import OPTIMIZERS
from polytask.policies import POLICIES
from polytask.regularizers import REGULARIZERS
from polytask.runs.folder import RunFolder
from polytask.runs.session import make_session
from polytask.training.captured import CapturedSteps, reason_not_capturable
from polytask.training.loop import Session
from polytask.types import StepReport

from .attention_by_borders import use_on_cpu
from .recorded_graphs import RecordedGraphs

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"
STEPS = 11
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TEXTS = "{kind: text, text: text, train: 'sample:opinions-train', dev: 'sample:opinions-dev', head: %s}"
WORDS = "{kind: tokens, text: text, label: spans, train: 'sample:entities-train', dev: 'sample:entities-dev'}"
TOPICS = (
    "{kind: multilabel, text: text, label: topics, train: 'sample:tickets-train', dev: 'sample:tickets-dev', loss: %s}"
)
REPLIES = "{kind: choice, text: message, options: [reply_0, reply_1, reply_2, reply_3], label: best, "
REPLIES += "train: 'sample:replies-train', dev: 'sample:replies-dev'}"
PAIRS = (
    "{kind: match, text: [question, article], train: 'sample:articles-train', dev: 'sample:articles-dev', head: "
    "{name: match, symmetric: true}}"
)
NEEDS = {
    "ewc": ["sampler=in_order", "regularizers=[{name: ewc, samples: 10}]"],
    "lwf": ["sampler=in_order"],
    "soft_sharing": ["adapter=own_encoder"],
    "smart": ["regularizers=[{name: smart, sigma: 0.1, eta: 0.1, epsilon: 0.1}]"],
    "dwa": ["sampler=mixed", "train.epochs=4", "train.steps_per_epoch=3"],
}
CASES = {
    **{f"regularizer {name}": [f"regularizers=[{name}]", *NEEDS.get(name, [])] for name in REGULARIZERS},
    "regularizer r_drop by task": ["regularizers=[{name: r_drop, task_weights: {similarity: 4.0}}]", "sampler=mixed"],
    **{f"policy {name}": ["sampler=mixed", f"policy={name}", *NEEDS.get(name, [])] for name in POLICIES},
    **{f"memory {name}": ["sampler=round_robin", f"policy={name}"] for name in ("gem", "a_gem", "replay")},
    **{f"optimizer {name}": [f"optimizer={{name: {name}, lr: 3e-3}}"] for name in OPTIMIZERS},
    **{f"text {head}": [f"tasks.texts={TEXTS % head}"] for head in ("mlm", "simcse")},
    "words": [f"tasks.entities={WORDS}", "sampler=mixed"],
    "words alone": [f"tasks.entities={WORDS}", "sampler=round_robin"],
    "words smart": [f"tasks.entities={WORDS}", *NEEDS["smart"]],
    "words r_drop": [f"tasks.entities={WORDS}", "regularizers=[{name: r_drop, both_losses: true}]"],
    "words gem": [f"tasks.entities={WORDS}", "policy=gem", "sampler=mixed"],
    "words lwf": [f"tasks.entities={WORDS}", "regularizers=[lwf]", "sampler=in_order"],
    "multilabel": [f"tasks.topics={TOPICS % 'null'}", "sampler=mixed"],
    "multilabel smart": [f"tasks.topics={TOPICS % 'null'}", *NEEDS["smart"]],
    "multilabel gem": [f"tasks.topics={TOPICS % '{name: focal, class_weights: balanced}'}", "policy=gem"],
    "multilabel weights": [f"tasks.topics={TOPICS % '{name: cross_entropy, class_weights: balanced}'}"],
    "choice": [f"tasks.reply={REPLIES}", "sampler=mixed"],
    "choice smart": [f"tasks.reply={REPLIES}", *NEEDS["smart"]],
    "choice gem": [f"tasks.reply={REPLIES}", "policy=gem"],
    "choice lwf": [f"tasks.reply={REPLIES}", "sampler=in_order", "regularizers=[lwf]"],
    "match": [f"tasks.articles={PAIRS}"],
    "match smart": [f"tasks.articles={PAIRS}", *NEEDS["smart"]],
    "match gem": [f"tasks.articles={PAIRS}", "policy=gem"],
    "accumulate": ["train.accumulate=2"],
    "accumulate gem": ["train.accumulate=2", "policy=gem"],
    "gem and smart": ["policy=gem", *NEEDS["smart"]],
    "lnsr off": ["regularizers=[{name: lnsr, dropout: 'off'}]", "sampler=mixed"],
    "lwf mixed": ["regularizers=[lwf]", "sampler=in_order", "adapter={name: pal, size: 12, heads: 3}"],
    "l2_sp and ewc": ["sampler=in_order", "regularizers=[l2_sp, {name: ewc, samples: 10}]"],
    "l2_sp of copies": ["regularizers=[l2_sp]", "adapter=own_encoder", "sampler=mixed"],
    "l2_sp and gem": ["regularizers=[l2_sp]", "policy=gem"],
    "average": ["train.ema=0.9"],
    "frozen dropout": ["train.parts=heads", "train.frozen_dropout=true", "tasks.similarity.head=cross"],
    "adapters dropout": ["train.parts=adapters", "train.frozen_dropout=true", "adapter=houlsby"],
    "skip": ["train.on_nan=skip"],
    "smoothing": ["tasks.opinion.loss={name: cross_entropy, smoothing: 0.1, class_weights: balanced}"],
    "focal": ["tasks.opinion.loss=focal"],
    "unlabelled": ["sampler=mixed"],
    "unlabelled focal": ["sampler=mixed", "tasks.opinion.loss={name: focal, class_weights: balanced}"],
}


@pytest.fixture(autouse=True)
def attention_that_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    use_on_cpu(monkeypatch)


STATIC = [
    *(
        case
        for case in CASES
        if case.startswith(
            ("regularizer", "text", "multilabel", "choice", "words", "match", "accumulate", "lwf", "lnsr", "l2_sp")
        )
    ),
    *("policy dwa", "policy pcgrad", "memory gem", "memory a_gem", "gem and smart", "optimizer lamb", "smoothing"),
    "unlabelled",
]
"""Cases in which a stream of static shape, or a step of several passes, could change what is computed."""
COMBINED = ("smart", "r_drop", "gem", "lwf", "weights", "focal", "ewc", "copies", "off", "mixed")


def cases(names: Iterable[str]) -> list[Any]:
    """The cases as parameters. Those that combine two methods, each of which has its own case, are slow tests."""
    own = ("regularizer", "policy", "memory", "optimizer", "text")
    is_slow = {name: not name.startswith(own) and name.endswith(COMBINED) for name in names}
    return [pytest.param(name, marks=pytest.mark.slow if is_slow[name] else ()) for name in names]


def session_of(folder: Path, tiny: list[str], case: str, captured: bool, dropout: bool) -> Session:
    settings = ["max_length=12", "train.batch_size=4", "train.epochs=1", f"train.steps_per_epoch={STEPS + 1}"]
    recipe = read_recipe(QUICKSTART, [*tiny, *settings, f"train.device={DEVICE}", *CASES[case]])
    if case.startswith("unlabelled"):
        files = {"opinion": "opinions", "question": "questions", "similarity": "similarity"}
        specs = {name: replace(spec, unlabelled=f"sample:{files[name]}-dev") for name, spec in recipe.tasks.items()}
        recipe = replace(recipe, tasks=specs)
    session = make_session(prepare(recipe), RunFolder(folder), torch.device(DEVICE))
    if case.startswith("unlabelled"):
        torch.manual_seed(0)
        shapes = {"opinion": (5,), "question": (), "similarity": ()}
        rows = session.feed.examples
        session.feed.teacher_outputs = {name: torch.rand(len(rows[name]), *shape) for name, shape in shapes.items()}
    if not dropout:
        for module in session.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(module, Attention):
                module.dropout = 0.0
    session.captured = None
    if captured:
        session.captured = CapturedSteps(
            session.model, session.optimizer, session.objective, session.settings, session.average
        )
    return session


def fitted(session: Session) -> list[StepReport]:
    """The first steps; without the evaluations before and after them, which take longer."""
    vars(session)["_evaluate_start"] = lambda: None
    steps = session.fit()
    reports = list(itertools.islice(steps, STEPS))
    steps.close()
    return reports


@pytest.mark.parametrize("case", cases(CASES))
def test_a_replay_is_the_same_as_its_python(case: str, tmp_path: Path, tiny_settings: list[str]) -> None:
    """Bit-identical, with dropout: nothing is computed in Python that a graph would keep from another step."""
    sessions = [session_of(tmp_path / name, tiny_settings, case, True, True) for name in ("run", "replayed")]
    for session in sessions:
        parts = session.optimizer, session.objective, session.settings
        assert reason_not_capturable(torch.device("cuda"), *parts) is None
        assert session.captured is not None
        if DEVICE == "cpu" and session is sessions[1]:
            session.captured.graphs = RecordedGraphs(session.captured.graphs)
        if DEVICE == "cuda" and session is sessions[0]:
            session.captured.graphs.reason = "for comparison"
    expected, found = (fitted(session) for session in sessions)
    steps = sessions[1].captured
    assert steps is not None
    assert steps.reason is None
    assert any(entry.graph is not None for entry in steps.graphs.entries.values())
    near: dict[str, Any] = {"rel": 0, "abs": 0} if DEVICE == "cpu" else {"rel": 1e-3, "abs": 1e-4}
    for one, other in zip(expected, found, strict=True):
        assert one.losses == pytest.approx(other.losses, **near)
        assert one.penalties == pytest.approx(other.penalties, **near)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, **near)


@pytest.mark.parametrize("case", cases(STATIC))
def test_a_captured_step_is_the_same_as_a_plain_one(case: str, tmp_path: Path, tiny_settings: list[str]) -> None:
    """To rounding, without dropout: streams of static shape have filler, for which other random numbers are drawn."""
    plain, captured = (
        session_of(tmp_path / str(captured), tiny_settings, case, captured, False) for captured in (False, True)
    )
    noise = any(name in case for name in ("lnsr", "smart"))  # drawn for filler too
    if noise:
        for session in (plain, captured):
            for name in ("lnsr", "smart"):
                if name in session.objective.regularizers:
                    session.objective.regularizers[name].weight = 1e-3  # type: ignore[attr-defined]
    expected, found = fitted(plain), fitted(captured)
    for one, other in zip(expected, found, strict=True):
        assert (one.step, one.examples, one.tokens) == (other.step, other.examples, other.tokens)
        assert one.losses == pytest.approx(other.losses, rel=2e-3, abs=1e-4)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=2e-2, abs=1e-4)
        if not noise:
            assert one.penalties == pytest.approx(other.penalties, rel=2e-3, abs=1e-5)
