"""`polytask contract`: passes for good methods of a plug-in, and says in a sentence what a bad one does wrong."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polytask import TABLES, UserError, contracts, run_contracts
from polytask.cli.main import make_app
from polytask.contracts.run import MODULES, check
from polytask.methods import KIND, METRIC, Origin, Registered

GOOD = """
import torch
from polytask import register
from polytask.adapters.ia3 import Ia3
from polytask.heads.linear import LinearHead
from polytask.kinds.score import Score
from polytask.losses.focal import Focal
from polytask.optim.lion import Lion
from polytask.policies.sum import WeightedSum
from polytask.regularizers.r_drop import RDrop
from polytask.samplers.power import Power

for table, name, base in [("adapter", "a", Ia3), ("head", "h", LinearHead), ("loss", "l", Focal),
                          ("optimizer", "o", Lion), ("policy", "p", WeightedSum), ("regularizer", "r", RDrop),
                          ("sampler", "s", Power)]:
    register(table, name, type(name, (base,), {"__init__": base.__init__}))
register("kind", "k", type("k", (Score,), {"examples": (1, 2.5, "5", 3, 4, 1.5)}))
register("metric", "m", lambda gold, predicted: float((gold == predicted).mean()))
"""
BAD = {
    "a task's rows depend on another's": (
        """
class Layer(LayerAdapter):
    def output(self, h_TD, layout):
        return h_TD + 0.1 * h_TD.mean(0)

class Bad(Adapter):
    plain_at_start = False
    def __init__(self, context: AdapterContext) -> None:
        super().__init__(LayerAdapter(), (Layer() for _ in range(context.layers)), context.tasks)

register("adapter", "bad", Bad)
""",
        "task one has other hidden states next to another task",
    ),
    "not plain at the start": (
        """
class Layer(LayerAdapter):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.9))
    def output(self, h_TD, layout):
        return h_TD * self.scale

class Bad(Adapter):
    def __init__(self, context: AdapterContext) -> None:
        super().__init__(LayerAdapter(), (Layer() for _ in range(context.layers)), context.tasks)

register("adapter", "bad", Bad)
""",
        "start with zeros, or declare `plain_at_start = False`",
    ),
    "a loss that is a sum": (
        """
class Bad(Loss):
    kinds = ("score",)
    def __call__(self, outputs, labels):
        return (outputs.float() - labels).square().sum()

register("loss", "bad", Bad)
""",
        "kind score: the loss must be a mean: examples that occur twice change it",
    ),
    "a head without a right shape": (
        """
class Bad(LinearHead):
    kinds = ("yes_no",)
    def forward(self, encoded):
        return super().forward(encoded)[:, None]

register("head", "bad", Bad)
""",
        "outputs for kind yes_no must have the shape (12,), found (12, 1)",
    ),
    "a head that compares the examples of a batch": (
        """
class Bad(LinearHead):
    kinds = ("classes",)
    def features(self, encoded):
        features = super().features(encoded)
        return features - features.mean(0)

register("head", "bad", Bad)
""",
        "its outputs for an example change with the other examples of the batch",
    ),
    "a sampler that forgets its place": (
        """
class Bad(RoundRobin):
    def load_state_dict(self, state):
        pass

register("sampler", "bad", Bad)
""",
        "after load_state_dict at step 1 the draws differ",
    ),
    "a policy that ignores the recipe's weights": (
        """
class Bad(Policy):
    def weigh(self, losses):
        return torch.stack(list(losses.values())).sum()

register("policy", "bad", Bad)
""",
        "weigh does not multiply the losses by context.weights",
    ),
    "a regularizer without a gradient": (
        """
class Bad(Regularizer):
    def penalty(self, model, forward):
        return torch.tensor(1.0)

register("regularizer", "bad", Bad)
""",
        "the penalty has no gradient",
    ),
    "an optimizer that never moves": (
        """
class Bad(torch.optim.Optimizer):
    def __init__(self, params, lr: float = 0.1, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
    def step(self, closure=None):
        return None

register("optimizer", "bad", Bad)
""",
        "a parameter with a gradient is not updated",
    ),
    "a metric that is not finite": (
        'register("metric", "bad", lambda gold, predicted: float("nan"))',
        "the value for classes must be finite, found nan",
    ),
    "a method that raises": (
        """
class Bad(RoundRobin):
    def draws(self, step):
        return self.nothing

register("sampler", "bad", Bad)
""",
        "it raised AttributeError",
    ),
}
IMPORTS = """
import torch
from polytask import register
from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter
from polytask.heads.linear import LinearHead
from polytask.losses.base import Loss
from polytask.policies.base import Policy
from polytask.regularizers.base import Regularizer
from polytask.samplers.round_robin import RoundRobin
"""


@pytest.fixture(autouse=True)
def new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path / "config"))


def test_every_table_has_a_contract() -> None:
    assert MODULES.keys() == {*TABLES, METRIC, KIND}


def test_a_good_method_of_every_table_passes(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    outcomes = list(run_contracts(tmp_path / "good.py", trust_plugins=True))
    assert [outcome for outcome in outcomes if outcome.problem is not None] == []
    assert {outcome.table for outcome in outcomes} == MODULES.keys()
    assert all(outcome.claim.endswith(".") for outcome in outcomes)


@pytest.mark.parametrize(("source", "message"), BAD.values(), ids=BAD)
def test_a_bad_method_fails_with_a_sentence(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(IMPORTS + source)
    problems = [outcome.problem for outcome in run_contracts(tmp_path / "bad.py", trust_plugins=True)]
    assert any(message in problem for problem in problems if problem is not None), problems


def test_options_that_do_not_fit_a_tiny_encoder_can_be_set(tmp_path: Path) -> None:
    source = "from polytask import register\nfrom polytask.adapters.pal import Pal\n"
    source += "class Mine(Pal):\n    __init__ = Pal.__init__\n\nregister('adapter', 'mine', Mine)\n"
    (tmp_path / "mine.py").write_text(source)
    first = next(run_contracts(tmp_path / "mine.py", ["mine.size=7", "mine.heads=2"], trust_plugins=True))
    assert first.problem is not None
    assert "it cannot be used with a tiny encoder" in first.problem
    outcomes = list(run_contracts(tmp_path / "mine.py", ["mine.size=12", "mine.heads=3"]))
    assert [outcome.problem for outcome in outcomes if outcome.problem is not None] == []
    for setting, message in (
        ("size=3", "must be NAME.OPTION=VALUE, as in mine.size=8"),
        ("other.size=3", "there is no method 'other' in the plug-in"),
        ("mine.sice=3", "there is no option 'sice' of mine"),
        ("mine.size=x", "must be an integer"),
    ):
        with pytest.raises(UserError, match=message):
            list(run_contracts(tmp_path / "mine.py", [setting]))


def test_the_command_shows_every_check_and_has_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(IMPORTS + "register('metric', 'm', lambda gold, predicted: 1.0)\n")
    (tmp_path / "bad.py").write_text(IMPORTS + BAD["a metric that is not finite"][0])
    app, runner = make_app(("contract", "methods")), CliRunner()
    refused = runner.invoke(app, ["contract", str(tmp_path / "good.py")])
    assert isinstance(refused.exception, UserError)
    assert "not trusted" in str(refused.exception)
    good = runner.invoke(app, ["contract", str(tmp_path / "good.py"), "--trust-plugins"])
    assert good.exit_code == 0
    assert "m  (metric)" in good.output
    assert "pass  It returns a finite number" in good.output
    assert "All 2 checks passed." in good.output
    bad = runner.invoke(app, ["contract", str(tmp_path / "bad.py"), "--trust-plugins"])
    assert bad.exit_code == 1
    assert "FAIL  It returns a finite number" in bad.output
    assert str(bad.exception).endswith("bad.py: 2 of 2 checks failed")
    listed = runner.invoke(app, ["methods", str(tmp_path / "good.py")])
    assert "m  (metric)" in listed.output


def test_the_checks_need_no_pytest() -> None:
    modules = ", ".join(f"polytask.contracts.{name}" for name in MODULES.values())
    code = f"import sys, {modules}; print('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    folder = Path(inspect.getfile(contracts)).parent
    assert not [path for path in folder.glob("*.py") if "\n    assert False" in path.read_text()]


def test_random_numbers_of_the_process_are_kept() -> None:
    import torch  # noqa: PLC0415

    torch.manual_seed(7)
    before = torch.get_rng_state()
    entry = Registered("adapter", "none", TABLES["adapter"]["ia3"], Origin("python", "x", ""))
    assert all(outcome.problem is None for outcome in check(entry, {}))
    assert torch.equal(torch.get_rng_state(), before)
