"""How many tokens fit into a GPU's memory."""

import gc
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from polytask.training import room
from polytask.training.room import MARGIN, Used, measure_room, tokens_that_fit
from polytask.types import UserError

MIB = 2**20


def test_memory_grows_with_the_tokens_beyond_a_fixed_part() -> None:
    fixed, rate = 300 * MIB, 1000
    small, large = (Used(tokens, fixed + rate * tokens) for tokens in (500, 1000))
    assert tokens_that_fit(small, large, fixed + rate * 40_000) == int(MARGIN * 40_000)


@pytest.mark.parametrize(
    ("small", "large", "free"),
    [
        (Used(500, 100), Used(500, 100), MIB),
        (Used(500, 100), Used(1000, 100), MIB),
        (Used(500, 2 * MIB), Used(1000, 3 * MIB), MIB),
    ],
    ids=["equal batches", "no difference", "not even one token"],
)
def test_no_number_is_better_than_a_wrong_one(small: Used, large: Used, free: int) -> None:
    assert tokens_that_fit(small, large, free) is None


@pytest.fixture
def small_gpu() -> Iterator[None]:
    """Leaves this process 300 MiB more than it has, and other processes everything else."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 300 * MIB) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.usefixtures("small_gpu")
def test_on_cuda_the_number_fits_and_three_times_as_much_does_not(make_session: Any, precision: str) -> None:
    """A step runs out of memory, and names a number of tokens; batches of that size can be trained."""
    options = {"device": "cuda", "precision": precision, "optimizer": "fused_adamw", "steps_per_epoch": 2}
    message = train_until_memory_ends(make_session("large", batch_size=60_000, **options))
    assert "would fit" in message, message
    fits = int(message.rpartition("About ")[2].split()[0].replace(",", ""))
    examples = fits // 9  # a text has 4 to 13 tokens with its special ones
    list(make_session("fits", batch_size=examples, **options).fit())
    assert "out of memory" in train_until_memory_ends(make_session("too-large", batch_size=3 * examples, **options))


def train_until_memory_ends(session: Any) -> str:
    """The message of the error; nothing else of the session is kept, so its memory is free again."""
    with pytest.raises(UserError) as caught:
        list(session.fit())
    traceback.clear_frames(caught.tb)
    return str(caught.value)


class FakeMemory:
    """A card on which a pass over n tokens needs `fixed + rate * n` bytes, and of which `size` bytes are free."""

    def __init__(self, size: int, fixed: int, rate: int) -> None:
        self.size, self.fixed, self.rate = size, fixed, rate
        self.tried: list[int] = []

    def used(self, device: torch.device, batch: int, differentiate: Any) -> Used:
        self.tried.append(batch)
        needed = self.fixed + self.rate * batch
        if needed > self.size:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return Used(batch, needed)


@pytest.mark.parametrize(
    ("tokens", "tried"), [(100_000, [12_500, 12_500, 25_000]), (900_000, [112_500, 14_062, 14_062, 28_125])]
)
def test_smaller_batches_are_measured_until_two_fit(
    tokens: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = FakeMemory(size=50 * MIB, fixed=10 * MIB, rate=1000)
    monkeypatch.setattr(room, "_used", memory.used)
    monkeypatch.setattr(room, "_free", lambda device: memory.size)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.AdamW([weight])
    found = measure_room(torch.device("cuda"), lambda share: tokens // share, lambda batch: None, optimizer)  # type: ignore[arg-type, return-value]
    assert memory.tried == tried
    assert found == int(MARGIN * (40 * MIB - 2 * 4 * 4) / 1000)


def test_on_the_cpu_nothing_is_measured() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(4))])
    assert measure_room(torch.device("cpu"), lambda share: 1 / 0, lambda batch: None, optimizer) is None  # type: ignore[arg-type, return-value]
