"""Sums that are sent during the backward pass equal those of the definition, also where processes lack gradients."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

import torch
from torch import nn
from polytask.kernels import overlapped_sums
from polytask.kernels.overlapped_sums import sums_of_gradients
from polytask.processes import join_processes

overlapped_sums.GROUP_BYTES = 200
processes = join_processes()
torch.manual_seed(0)
layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
heads = nn.ModuleList(nn.Linear(6, 2) for _ in range(3))  # the last one is used by no process
x = torch.randn(5, 6, generator=torch.Generator().manual_seed(processes.rank))
parameters = [*(p for layer in reversed(layers) for p in layer.parameters()), *heads.parameters()]


def loss():
    h = x
    for layer in layers:
        h = layer(h).relu()
    used = [head(h) for number, head in enumerate(heads[:2]) if number == 0 or processes.rank == number]
    return sum(output.square().sum() for output in used)


loss().backward()
expected = processes.sum_gradients(parameters, {p: p.grad for p in parameters if p.grad is not None})
for parameter in parameters:
    parameter.grad = None
with sums_of_gradients(parameters, processes):
    loss().backward()
for parameter in parameters:
    if parameter in expected:
        torch.testing.assert_close(parameter.grad, expected[parameter])
    else:
        assert parameter.grad is None
assert len(expected) == len(parameters) - 2
with sums_of_gradients(parameters, processes):  # a process without examples computes nothing
    if processes.rank:
        loss().backward()
assert parameters[0].grad is not None
copies = {p: nn.Parameter(p.detach().bfloat16()) for p in parameters[:8]}  # gradients of copies, sums in float32
for overlap in (True, False):
    for parameter, copy in copies.items():
        parameter.grad = torch.ones_like(parameter)  # what a penalty of the weights themselves would leave
    with sums_of_gradients(parameters[:8], processes, copies, reached=set(parameters[:6]), overlap=overlap):
        sum(((processes.rank + 1) * copy).sum() for copy in copies.values()).backward()
    for number, (parameter, copy) in enumerate(copies.items()):
        assert copy.grad is None
        if number < 6:
            torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 1 + 2 + 3 + 3))
        else:
            assert parameter.grad is None
sys.stdout.write(f"equal {processes.rank}\\n")  # in one piece: all processes write
"""


def test_the_sums_are_those_of_the_definition(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(program)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.split()) == ["0", "1", "2", "equal", "equal", "equal"]
