"""Fixtures for all tests: the real encoder, tiny runs, streams, Triton's interpreter and compiler."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

try:
    import triton  # before polytask, which imports it only on machines with a GPU
except ImportError:
    triton = None

from polytask import Finished, train
from polytask.kernels.triton_support import TRITON
from polytask.pretrained.find import find_encoder
from polytask.stream import Layout, Stream
from polytask.types import UserError

MakeStream = Callable[..., Stream]


# On tensors as small as these, and on cores that are shared, threads that wait for each other take most of the time.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the real encoder. Only a machine that says it is offline may do without."""
    try:
        return find_encoder("minilm")
    except UserError as error:
        if os.environ.get("HF_HUB_OFFLINE"):
            pytest.skip(str(error))
        raise


@pytest.fixture
def under_interpreter() -> Callable[..., None]:
    """Runs a file's tests once more, with Triton's kernels interpreted on the CPU: it decides that when it is imported,
    so they have a process of their own."""
    if not TRITON or os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("needs Triton, and not to be in its interpreter already")

    def run(file: str, *options: str) -> None:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, file]
        environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.fixture
def ptx() -> Callable[..., str]:
    """Compiles a kernel for an H200, without one, and makes what would launch it: the code, given what the kernel takes
    (float32 addresses where nothing is said), its constants and its warps."""
    if not TRITON or os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("needs Triton's compiler")
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource, make_backend  # noqa: PLC0415
    from triton.runtime.jit import create_function_from_signature  # noqa: PLC0415

    def compiled(kernel: Any, kinds: dict[str, str], num_warps: int, **constants: Any) -> str:
        target = GPUTarget("cuda", 90, 32)
        # A parameter of a name that Triton has a use for itself ("options") would fail only here.
        create_function_from_signature(kernel.signature, kernel.params, make_backend(target))
        names = kernel.arg_names
        takes = {name: "constexpr" if name in constants else kinds.get(name, "*fp32") for name in names}
        aligned = {(k,): [["tt.divisibility", 16]] for k, name in enumerate(names) if takes[name].startswith("*")}
        source = ASTSource(kernel, takes, {(names.index(n),): v for n, v in constants.items()}, aligned)
        return str(triton.compile(source, target=target, options={"num_warps": num_warps}).asm["ptx"])

    return compiled


TINY = {
    "encoder": "{layers: 2, hidden: 32, heads: 4, ffn: 64, positions: 128}",
    "train.steps_per_epoch": "10",
    "train.epochs": "2",
    "optimizer.lr": "3e-3",
    "train.precision": "float32",  # whatever this machine multiplies
    "train.device": "cpu",  # also on a machine with a GPU: tests that are about GPUs choose one themselves
}
QUICKSTART = Path(__file__).parent.parent / "recipes" / "quickstart.yaml"


@pytest.fixture(scope="session")
def tiny_settings() -> list[str]:
    """Settings with which a recipe takes seconds: an untrained encoder and twenty steps."""
    return [f"{field}={value}" for field, value in TINY.items()]


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Finished:
    """The finished run of a tiny quick start. Tests must not change it."""
    return train(QUICKSTART, tmp_path_factory.mktemp("tiny") / "run", tiny_settings)


@pytest.fixture(scope="session")
def make_stream() -> MakeStream:
    """make_stream(sequences, segments=None): a stream of one task with these token ids, special tokens or not."""

    def make(sequences: Sequence[Tensor], segments: Sequence[Tensor] | None = None) -> Stream:
        lengths = tuple(len(ids) for ids in sequences)
        tokens = sum(lengths)
        return Stream(
            torch.cat(list(sequences)),
            torch.cat([torch.arange(length) for length in lengths]),
            torch.zeros(tokens, dtype=torch.long) if segments is None else torch.cat(list(segments)),
            Layout(
                cu_seqlens_S1=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
                lengths=lengths,
                sequence_ranges=((0, len(lengths)),),
                token_ranges=((0, tokens),),
            ),
        )

    return make
