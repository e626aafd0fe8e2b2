"""The processes that train one run together, and what they exchange: sums, tensors and short texts.

Every process holds the whole model and computes its part of each step (`training/division.py`). What they exchange goes
through torch.distributed: gloo between CPUs, NCCL between GPUs. A process on its own (`ALONE`) exchanges nothing.
Nothing is pickled: texts are UTF-8, tensors are safetensors. Knows tensors; knows no model and no method.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count as count_from
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from polytask.connection import connect, disconnect, lost_processes, publish, published, started_processes
from polytask.types import UserError

_runs = count_from(1)


@dataclass(frozen=True)
class Processes:
    """This process and the others: its rank, from 0 to `count` - 1."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    """The rank among the processes of this machine."""
    local_count: int = 1
    """The number of processes on this machine."""
    run: int = 0
    """The number of the run: one program may train several, one after another."""

    @property
    def several(self) -> bool:
        return self.count > 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run's files and shows its progress."""
        return self.rank == 0

    # --- tensors ------------------------------------------------------------------------------------------------------
    def add_up(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over the processes, which is bit-identical in all of them."""
        if self.several:
            with lost_processes():
                dist.all_reduce(tensor)
        return tensor

    def start_adding_up(self, tensor: Tensor) -> Callable[[], None]:
        """Start to replace a tensor by its sum over the processes; return a function that waits for the end."""
        with lost_processes():
            work = dist.all_reduce(tensor, async_op=True)

        def wait() -> None:
            with lost_processes():
                work.wait()

        return wait

    def sum_of_parts(self, tensor: Tensor) -> Tensor:
        """Return the sum over the processes, whose gradient is that of this process's own part."""
        if not self.several:
            return tensor
        total: Tensor = _SumOfParts.apply(tensor, self)  # type: ignore[no-untyped-call]
        return total

    def sum_gradients(self, parameters: Sequence[Tensor], gradients: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Return the sums over the processes, for the parameters that have a gradient in any of them.

        `parameters` are the same in every process. They are sent as one tensor; a parameter that has no gradient here
        is sent as zeros, together with the information that it has none.
        """
        parameters = [p for p in parameters if p.requires_grad]
        if not self.several or not parameters:
            return {p: gradients[p] for p in parameters if p in gradients}
        sizes, device = [p.numel() for p in parameters], parameters[0].device
        flat = torch.zeros(sum(sizes) + len(sizes), dtype=parameters[0].dtype, device=device)
        *pieces, given = flat.split([*sizes, len(sizes)])
        for number, (parameter, piece) in enumerate(zip(parameters, pieces, strict=True)):
            if parameter in gradients:
                piece.copy_(gradients[parameter].flatten())
                given[number] = 1
        self.add_up(flat)
        has_gradient = given.tolist()
        return {
            parameter: piece.view_as(parameter)
            for parameter, piece, known in zip(parameters, pieces, has_gradient, strict=True)
            if known
        }

    def gather(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return the tensors of every process, by rank; on the CPU."""
        from safetensors.torch import load, save  # noqa: PLC0415  (only where processes exchange tensors)

        own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        return [load(content) for content in self._gather_bytes(save(own))] if self.several else [own]

    def from_main(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Return the tensors that the first process passes; the others pass None.

        They are sent one after another, because a checkpoint is large and a machine may have many processes.
        """
        if not self.several:
            return dict(tensors or {})
        own = {name: tensor.detach().cpu().contiguous() for name, tensor in (tensors or {}).items()}
        shapes = {name: (str(tensor.dtype).removeprefix("torch."), tensor.shape) for name, tensor in own.items()}
        described = self.text_from_main(json.dumps(shapes) if self.is_main else None)
        for name, (dtype, shape) in json.loads(described).items():
            if not self.is_main:
                own[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            if own[name].numel():
                with lost_processes():
                    dist.broadcast(own[name].view(-1).view(torch.uint8), 0)
        return own

    # --- texts --------------------------------------------------------------------------------------------------------
    def texts(self, text: str) -> list[str]:
        """Return the text that each process passes, by rank."""
        return [content.decode() for content in self._gather_bytes(text.encode())] if self.several else [text]

    def text_from_main(self, text: str | None) -> str:
        """Return the text that the first process passes; the others pass None."""
        own = None if text is None else text.encode()
        return self._bytes_from_main(own).decode() if self.several else str(text)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return bool(self.add_up(torch.tensor(float(flag))).item()) if self.several else flag

    @contextmanager
    def one_error_for_all(self) -> Iterator[None]:
        """Lets every process raise a UserError if the block raises one in any of them; the block exchanges nothing.

        Otherwise the others would wait for the one that has ended. An error that several processes have is raised by
        the first of them, and the others raise an `ErrorElsewhere`.
        """
        error: UserError | None = None
        try:
            yield
        except UserError as raised:
            error = raised
        texts = self.texts("" if error is None else f"!{error}")
        first = next((rank for rank, text in enumerate(texts) if text), None)
        if error is not None and texts.index(texts[self.rank]) == self.rank:
            raise error
        if first is not None:
            raise ErrorElsewhere(f"process {first} of {self.count}: {texts[first][1:]}") from error

    def check_equal(self, what: str, text: str) -> None:
        """Raise a UserError if a process passes another text than the first process."""
        first, *others = self.texts(text)
        different = [rank for rank, other in enumerate(others, start=1) if other != first]
        if different:
            raise self._difference(different[0], what, f"{others[different[0] - 1]} instead of {first}")

    def check_equal_fields(self, what: str, fields: Mapping[str, Any]) -> None:
        """Raise a UserError that names the fields in which a process differs from the first one."""
        first, *others = (json.loads(text) for text in self.texts(json.dumps(fields, default=str)))
        for rank, other in enumerate(others, start=1):
            names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
            if names:
                found = (f"{name} is {other.get(name)} instead of {first.get(name)}" for name in names)
                raise self._difference(rank, what, ", ".join(found))

    def _difference(self, rank: int, what: str, found: str) -> UserError:
        """The error that every process raises and the first one shows."""
        return (UserError if self.is_main else ErrorElsewhere)(
            f"process {rank} of {self.count} has other {what} than process 0: {found}; all processes must be given the "
            "same files, settings and versions"
        )

    # --- the end ------------------------------------------------------------------------------------------------------
    def leave(self) -> "Processes":
        """End the exchange, in all processes at the same point; return this process on its own, with its rank."""
        if not self.several:
            return self
        self.any(False)  # none leaves while another still computes: NCCL could block
        disconnect()
        return replace(self, count=1)

    def tell_others(self, text: str, wait: bool = True) -> None:
        """In the first process: the text that `told_by_main` returns in the others, also after they have left.

        `wait`: until those that wait for it have read it.
        """
        if self.several:
            publish(f"polytask/run {self.run}", text, wait)

    def told_by_main(self) -> str:
        """Wait, for as long as it takes, until the first process calls `tell_others`."""
        return published(f"polytask/run {self.run}")

    # --- bytes --------------------------------------------------------------------------------------------------------
    def _gather_bytes(self, content: bytes) -> list[bytes]:
        sizes = torch.zeros(self.count, dtype=torch.int64)
        sizes[self.rank] = len(content)
        lengths = self.add_up(sizes).tolist()
        own = torch.zeros(max(*lengths, 1), dtype=torch.uint8)
        own[: len(content)] = _as_tensor(content)
        everyone = [torch.empty_like(own) for _ in range(self.count)]
        with lost_processes():
            dist.all_gather(everyone, own)
        return [part[:length].numpy().tobytes() for part, length in zip(everyone, lengths, strict=True)]

    def _bytes_from_main(self, content: bytes | None) -> bytes:
        assert (content is not None) == self.is_main
        size = int(self.add_up(torch.tensor(len(content or b""))).item())
        tensor = torch.empty(size, dtype=torch.uint8) if content is None else _as_tensor(content)
        with lost_processes():
            dist.broadcast(tensor, 0)
        return tensor.numpy().tobytes()


ALONE = Processes()


class _SumOfParts(torch.autograd.Function):
    """`sum_r x_r` over the processes r. The gradient with respect to the own x is passed on unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, processes: Processes) -> Tensor:
        return processes.add_up(tensor.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return gradients[0], None


def _as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)[: len(content)]


def join_processes(environment: Mapping[str, str] = os.environ) -> Processes:
    """Return the processes of this job, connected; ALONE if this process was not started with others."""
    count = started_processes(environment)
    if count == 1:
        return ALONE
    connect()
    local_rank, local_count = (int(environment.get(name, "0")) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    return Processes(int(environment["RANK"]), count, local_rank, max(1, local_count), next(_runs))


def refuse_several(command: str) -> None:
    """Raise a UserError if torchrun has started several processes for a command that uses one."""
    count = started_processes()
    if count > 1:
        raise UserError(f"{command}: runs in one process, and {count} were started; start it without torchrun")


class ErrorElsewhere(UserError):
    """An error that another process has raised, and shows."""
