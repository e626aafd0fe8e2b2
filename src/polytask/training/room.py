"""How many tokens a batch may have: measured on two small batches after a step has run out of a GPU's memory."""

import gc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from polytask.training.feed import Batch
from polytask.training.step import out_of_memory

MARGIN = 0.75
"""Of what fits by calculation: memory is allocated in blocks, and batches of the same size differ."""

SHARES = (4, 32, 256)
"""The larger of the two batches is this part of the one that did not fit; the next one if that does not fit either."""


class Used(NamedTuple):
    """The memory that the forward and backward pass over a batch needs at most."""

    tokens: int
    bytes: int


def tokens_that_fit(small: Used, large: Used, free: int) -> int | None:
    """Extrapolate `fixed + rate * tokens`; None if the two batches do not tell them apart."""
    if large.tokens <= small.tokens or large.bytes <= small.bytes:
        return None
    rate = (large.bytes - small.bytes) / (large.tokens - small.tokens)
    fixed = max(small.bytes - rate * small.tokens, 0)
    fits = int(MARGIN * (free - fixed) / rate)
    return fits if fits > 0 else None


def measure_room(
    device: torch.device,
    batches: Callable[[int], Batch],
    differentiate: Callable[[Batch], object],
    optimizer: torch.optim.Optimizer,
) -> int | None:
    """Measure how many tokens fit; `batches(n)` returns a batch of about 1/n of the usual size.

    None on the CPU, where processes share the memory, and if not even the small batches fit.
    """
    if device.type != "cuda":
        return None
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    for share in SHARES:
        try:
            # The first pass also allocates what stays, such as the workspaces of matmuls.
            _, small, large = (_used(device, batches(part), differentiate) for part in (2 * share, 2 * share, share))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            continue
        finally:
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
        return tokens_that_fit(small, large, _free(device) - _missing_state(optimizer))
    return None


def _free(device: torch.device) -> int:
    """The bytes that this process can still allocate: of the device, and of its share of it."""
    free, total = torch.cuda.mem_get_info(device)
    share = torch.cuda.get_per_process_memory_fraction(device)
    return min(free, int(share * total) - torch.cuda.memory_reserved(device))


def _used(device: torch.device, batch: Batch, differentiate: Callable[[Batch], object]) -> Used:
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    differentiate(batch)
    return Used(len(batch.together.token_ids_T), torch.cuda.max_memory_allocated(device) - before)


def _missing_state(optimizer: torch.optim.Optimizer) -> int:
    """The bytes of the optimizer's state that its first step creates: two numbers per weight, as in Adam."""
    parameters: Sequence[torch.Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
    return sum(2 * p.numel() * p.element_size() for p in parameters if not optimizer.state.get(p))
