"""What several rooms' tests share: the real encoder, and streams made by hand."""

import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch import Tensor

from polytask.trunk.encoders import find_encoder
from polytask.types import Layout, Stream, UserError

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
                task_ids_S=torch.zeros(len(lengths), dtype=torch.long),
                task_ids_T=torch.zeros(tokens, dtype=torch.long),
                lengths=lengths,
                sequence_ranges=((0, len(lengths)),),
                token_ranges=((0, tokens),),
            ),
        )

    return make
