"""The contracts hold for methods that they have never heard of: new ones pass without a line in any test."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEW = '''
import torch
from polytask.optim import OPTIMIZERS
from polytask.optim.base import check_options
from polytask.policies import POLICIES
from polytask.policies.base import StepPolicy
from polytask.regularizers import REGULARIZERS
from polytask.regularizers.base import Regularizer
from polytask.samplers import SAMPLERS
from polytask.samplers.base import StepSampler
from polytask.types import Draw


class SignDescent(torch.optim.Optimizer):
    """No betas, no eps, and nothing kept of a parameter."""

    def __init__(self, params, lr: float = 1e-3, *, weight_decay: float = 0.0) -> None:
        check_options("stranger", lr=lr, weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    raise RuntimeError("no sparse gradients")
                parameter.mul_(1 - float(group["lr"]) * group["weight_decay"])
                parameter.sub_(float(group["lr"]) * parameter.grad.sign())
        return loss


class Halves(StepPolicy):
    def solve(self, gram_KK):
        return gram_KK.diagonal() * 0 + 0.5


class Size(Regularizer):
    def __init__(self, context, *, weight: float = 0.1) -> None:
        super().__init__(context)
        self.weight = weight

    def penalty(self, model, done):
        outputs = torch.cat([out.flatten() for out in done.outputs.values()])
        return self.weight * outputs.float().square().mean()


class Backwards(StepSampler):
    def draws(self, step):
        return (Draw(self.tasks[-1 - step % len(self.tasks)], self.context.batch_size),)


OPTIMIZERS["stranger"] = SignDescent
POLICIES["stranger"] = Halves
REGULARIZERS["stranger"] = Size
SAMPLERS["stranger"] = Backwards
'''


@pytest.mark.slow
def test_a_new_method_passes_the_contracts(tmp_path: Path) -> None:
    (tmp_path / "new_methods.py").write_text(NEW, encoding="utf-8")
    files = [f"test_{table}.py" for table in ("optimizers", "policies", "regularizers", "samplers")]
    command = [sys.executable, "-m", "pytest", "-v", "-p", "new_methods", "-p", "no:cacheprovider", "-p", "no:xdist"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, "-k", "stranger", *(str(HERE / file) for file in files)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for file in files:
        assert re.search(rf"{file}::\S*stranger\S* PASSED", done.stdout), file
