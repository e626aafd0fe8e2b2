"""Measures the kernels between matmuls on CUDA: ours, torch's, and torch's compiled.

    PYTHONPATH=src python benchmarks/between.py [ROUNDS]

Bias, dropout, residual sum and layer norm (kernels/add_and_norm.py), and bias with gelu (kernels/bias_gelu.py), forward
and backward, bf16 with residual sums in float32, on 928 and 16,384 tokens of BERT-base and MiniLM. Each implementation
is captured as a CUDA graph; the implementations take turns. Prints medians, their ratios, and the time that moving the
bytes would take. Then compares other block sizes.
"""

import sys
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from graph_times import Run, captured, microseconds
from torch import Tensor

from polytask.kernels import bias_gelu as bias_gelu_module
from polytask.kernels import column_sums as column_sums_module
from polytask.kernels import row_norm as row_norm_module
from polytask.kernels.add_and_norm import add_and_norm

SHAPES = [(928, 768, 3072), (16384, 768, 3072), (928, 384, 1536), (16384, 384, 1536)]
BANDWIDTH = 4.3e12  # bytes per second, measured with a copy on an H200


def torch_norm(
    residual: Tensor, y: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    full = F.layer_norm(residual + F.dropout(y + bias, dropout), residual.shape[1:], scale, shift, 1e-12)
    return full, full.to(y.dtype)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()


def norm_variants(tokens: int, size: int) -> dict[str, Run]:
    residual, y, bias = random(tokens, size, dtype=torch.float32), random(tokens, size), random(size)
    scale, shift = random(size, dtype=torch.float32), random(size, dtype=torch.float32)
    grads = torch.randn(tokens, size, device="cuda"), torch.randn(tokens, size, device="cuda").bfloat16()
    learning = [residual, y, bias, scale, shift]
    compiled = torch.compile(torch_norm)

    def ours() -> Any:
        dropout = row_norm_module.Draw(0.1, torch.randint(2**62, (1,), device="cuda"))
        outs = add_and_norm(residual, y, bias, None, (scale, shift), 1e-12, dropout)
        return torch.autograd.grad(outs, learning, grads)

    return {
        "ours": ours,
        "torch": lambda: torch.autograd.grad(torch_norm(residual, y, bias, scale, shift, 0.1), learning, grads),
        "compiled": lambda: torch.autograd.grad(compiled(residual, y, bias, scale, shift, 0.1), learning, grads),
    }


def gelu_variants(tokens: int, size: int) -> dict[str, Run]:
    x, bias, grad = random(tokens, size), random(size), random(tokens, size).detach()
    compiled = torch.compile(lambda x, bias: F.gelu(x + bias))
    return {
        "ours": lambda: torch.autograd.grad(bias_gelu_module.bias_gelu(x, bias), [x, bias], grad),
        "torch": lambda: torch.autograd.grad(F.gelu(x + bias), [x, bias], grad),
        "compiled": lambda: torch.autograd.grad(compiled(x, bias), [x, bias], grad),
    }


def compare(title: str, variants: dict[str, Run], bytes_moved: int, rounds: int) -> None:
    times = microseconds({name: captured(run) for name, run in variants.items()}, rounds)
    listed = ", ".join(f"{name} {taken:.1f} us ({taken / times['ours']:.2f})" for name, taken in times.items())
    print(f"{title}: {listed}, bytes only {bytes_moved / BANDWIDTH * 1e6:.1f} us", flush=True)


def tune(module: Any, block_sizes: list[dict[str, int]], run: Run, rounds: int) -> None:
    own = {name: getattr(module, name) for name in block_sizes[0]}
    graphs = {}
    for sizes in block_sizes:
        for name, value in sizes.items():
            setattr(module, name, value)
        graphs[f"{sizes}{'  <- current' if sizes == own else ''}"] = captured(run)
    for name, value in own.items():
        setattr(module, name, value)
    for label, taken in sorted(microseconds(graphs, rounds).items(), key=lambda item: item[1]):
        print(f"  {taken:8.1f} us  {label}", flush=True)


def main(rounds: int) -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {version('triton')}")
    for tokens, hidden, ffn in SHAPES:
        norm, gelu = norm_variants(tokens, hidden), gelu_variants(tokens, ffn)
        compare(f"add_and_norm of {tokens} x {hidden}", norm, tokens * hidden * 30, rounds)
        block_sizes = [{"PROGRAMS": p, "ROWS": r, "LANE": n} for p in (330, 660) for r in (1, 2, 4) for n in (128, 256)]
        tune(row_norm_module, block_sizes, norm["ours"], rounds)
        compare(f"bias_gelu of {tokens} x {ffn}", gelu, tokens * ffn * 10, rounds)
        block_sizes = [
            {"ROWS": r, "COLUMNS": c, "WARPS": w} for r, c in ((16, 128), (32, 128), (32, 256)) for w in (4,)
        ]
        tune(bias_gelu_module, block_sizes, gelu["ours"], rounds)
        tune(column_sums_module, [{"ROWS": r, "WARPS": w} for r in (64, 128, 256) for w in (4,)], norm["ours"], rounds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
