"""polytask.register: what it accepts, what it refuses and why; methods of installed packages."""

import importlib
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import polytask
from polytask import UserError, methods, register
from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter
from polytask.build import make
from polytask.losses.base import Loss
from polytask.methods import TABLES, load_entry_points
from polytask.plugins.files import method_versions
from polytask.runs.prepare import methods_origin, prepare
from polytask.samplers.base import SamplerContext, StepSampler
from polytask.settings import MethodChoice
from polytask.types import Draw


class Mine(Adapter):
    """Nothing at all."""

    def __init__(self, context: AdapterContext, *, size: int = 4) -> None:
        super().__init__(LayerAdapter(), (LayerAdapter() for _ in range(context.layers)), context.tasks)
        self.size = size


class Untyped(Mine):
    def __init__(self, context: AdapterContext, *, size=4) -> None:  # type: ignore[no-untyped-def]
        super().__init__(context, size=size)


class NoDefault(Mine):
    def __init__(self, context: AdapterContext, *, size: int) -> None:
        super().__init__(context, size=size)


class OddType(Mine):
    def __init__(self, context: AdapterContext, *, size: Path = Path()) -> None:
        super().__init__(context)


class OtherArguments(Mine):
    def __init__(self, context: AdapterContext, encoder: Any) -> None:
        super().__init__(context)


class NoKinds(Loss):
    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.mean()


class NoCall(Loss):
    kinds: ClassVar[Any] = ("classes",)


class NoDecay(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})


class Last(StepSampler):
    def draws(self, step: int) -> tuple[Draw, ...]:
        return (Draw(self.tasks[-1], self.context.batch_size),)


def test_a_registered_method_is_one_of_the_table() -> None:
    register("adapter", "mine", Mine)
    register("adapter", "mine", Mine)  # a cell of a notebook that runs again
    context = AdapterContext(("a",), 1, 8, 2, 16, 0.0)
    assert make("adapter", MethodChoice("mine", {"size": 3}), "here", context).size == 3
    with pytest.raises(UserError, match="must be an integer, found 'x'"):
        make("adapter", MethodChoice("mine", {"size": "x"}), "here", context)
    register("sampler", "last", Last)
    draws = make("sampler", MethodChoice("last"), "here", SamplerContext({"a": 3, "b": 5}, 2, 0, 4, 1)).next_step()
    assert draws == (Draw("b", 2),)


@pytest.mark.parametrize(
    ("table", "name", "method", "message"),
    [
        ("adaptor", "mine", Mine, "there is no table 'adaptor' \\(did you mean adapter\\?\\)"),
        ("kind", "mine", Mine, "Mine must derive from polytask.kinds.base.Kind"),
        ("adapter", "My-Own", Mine, "a name must have 1 to 64 lower-case letters"),
        ("adapter", "pal", Mine, "polytask has its own adapter of this name"),
        ("metric", "accuracy", max, "polytask has its own metric of this name"),
        ("adapter", "mine", Mine(AdapterContext((), 1, 8, 2, 16, 0.0)), "must be a class, found Mine"),
        ("head", "mine", Mine, "Mine must derive from polytask.heads.base.Head"),
        ("sampler", "mine", Mine, "Mine has no next_step, observe, stages; derive it from .*StepSampler"),
        ("loss", "mine", NoCall, "NoCall must define __call__"),
        ("loss", "mine", NoKinds, "NoKinds.kinds must be the kinds of label that the loss supports"),
        ("adapter", "mine", Untyped, "the option size has no type; annotate it, as in `size: float = 1.0`"),
        ("adapter", "mine", NoDefault, "missing a required argument: 'size'"),
        ("adapter", "mine", OddType, "the option size: recipes have no values of type Path; use int, float"),
        ("adapter", "mine", OtherArguments, r"must take the arguments \(context\), .*: missing a required argument"),
        ("optimizer", "mine", NoDecay, "NoDecay must have the options lr and weight_decay, found no weight_decay"),
        ("metric", "mine", Mine, "a metric must be a function of"),
        ("metric", "mine", lambda gold: 1.0, r"must take the arguments \(gold, predicted\)"),
    ],
)
def test_an_error_says_what_is_wrong(table: str, name: str, method: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        register(table, name, method)
    assert (table, name) not in methods.REGISTERED


def test_another_class_cannot_take_the_name() -> None:
    register("adapter", "mine", Mine)
    with pytest.raises(UserError, match=r"the name is taken by Python .*Mine, and Python .*OddSize registers it too"):
        register("adapter", "mine", type("OddSize", (Mine,), {}))


def test_what_is_registered_in_python_counts_in_a_runs_identity(folder: Path) -> None:
    register("adapter", "mine", Mine)
    recipe = polytask.read_recipe(
        folder / "recipe.yaml", ["plugins=[]", "adapter=mine", "tasks.mood.loss=null", "tasks.mood.metrics=[]"]
    )
    (name, version), *others = methods_origin(prepare(recipe))["methods"].items()
    assert name == "adapter mine"
    assert version.startswith("Python ")
    assert not others


# --- installed packages -----------------------------------------------------------------------------------------------
Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """install(package, code): a package whose entry point is its only module."""
    load_entry_points.cache_clear()
    monkeypatch.syspath_prepend(str(tmp_path))

    def make_package(package: str, code: str) -> None:
        info = tmp_path / f"{package}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[polytask.methods]\nall = {package}_methods\n")
        (tmp_path / f"{package}_methods.py").write_text(code)

    yield make_package
    load_entry_points.cache_clear()
    for name in [name for name in sys.modules if name.endswith("_methods")]:
        del sys.modules[name]


REGISTERS = """
import polytask
from polytask.adapters.none import NoAdapter

class Packaged(NoAdapter):
    pass

polytask.register("adapter", "packaged", Packaged)
"""


def test_packages_are_imported_when_a_method_is_unknown(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("good", REGISTERS)
    install("broken", "raise RuntimeError('too old')")
    context = AdapterContext(("a",), 1, 8, 2, 16, 0.0)
    make("adapter", MethodChoice("none"), "here", context)
    assert "good_methods" not in sys.modules
    with caplog.at_level(logging.WARNING):
        assert type(make("adapter", MethodChoice("packaged"), "here", context)).__name__ == "Packaged"
    assert "the package broken cannot register its methods (entry point all = broken_methods)" in caplog.text
    assert "RuntimeError: too old" in caplog.text
    assert str(methods.REGISTERED["adapter", "packaged"].origin) == "package good 1.5"
    with pytest.raises(UserError, match="there is no adapter 'pakaged' \\(did you mean packaged"):
        make("adapter", MethodChoice("pakaged"), "here", context)


def test_a_package_can_name_a_function_that_registers(install: Install, tmp_path: Path) -> None:
    install("lazy", "def add():\n" + "".join(f"    {line}\n" for line in REGISTERS.strip().splitlines()))
    (tmp_path / "lazy-1.5.dist-info" / "entry_points.txt").write_text("[polytask.methods]\nall = lazy_methods:add\n")
    load_entry_points()
    assert "packaged" in TABLES["adapter"]


def test_changed_code_of_a_package_counts_although_its_version_is_the_same(install: Install, tmp_path: Path) -> None:
    """As in a package that is installed with `pip install -e`."""
    versions = []
    for code in (REGISTERS, REGISTERS, REGISTERS.replace("pass", "slow = True")):
        if versions:
            methods.remove(methods.REGISTERED["adapter", "packaged"])
            del sys.modules["edited_methods"]
            (tmp_path / "edited_methods.py").write_text(code)
        else:
            install("edited", code)
        load_entry_points.cache_clear()
        importlib.invalidate_caches()
        load_entry_points()
        versions.append(method_versions((), ["packaged"]))
    assert versions[0] == versions[1] != versions[2]
    assert versions[0]["adapter packaged"].startswith("package edited 1.5, source ")


def test_help_and_imports_do_not_load_packages(install: Install, tmp_path: Path) -> None:
    install("slow", "raise SystemExit('imported')")
    code = "import sys, polytask; polytask.register; print('slow_methods' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "False"]


def test_modules_are_not_methods() -> None:
    with pytest.raises(UserError, match="must derive from"):
        register("adapter", "linear_layer", nn.Linear)
