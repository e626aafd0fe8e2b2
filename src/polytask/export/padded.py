"""The whole model as one graph over padded batches, as other programs call encoders. No file.

The encoder, the adapter and the heads run as they are defined, on the flattened batch: `PaddedLayout` makes every row a
sequence, padding included, and hides padding from attention. The tasks that share all of the encoder share one pass of
it; a task with adapter parameters of its own has its own pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from polytask.heads.base import Head
from polytask.model import MultiTaskModel
from polytask.settings import WindowPool
from polytask.stream import LENGTH_OF_MISSING, Bucket, Encoded, Layout, Pooling, Stream

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
WINDOWS = "windows"
"""The input of models with tasks that read long texts in windows, [N, W]: the rows that are the windows of each text,
with -1 behind the last."""
ROWS = {"joined": 1, "separate": 2, "both": 3}
"""How many rows of the batch the two texts of a pair are, by the head's reading."""


@dataclass(frozen=True)
class PaddedLayout(Layout):
    """The layout of a padded batch whose number of rows and width may be symbols, as in an exported graph."""

    mask_BL: Tensor | None = None
    """True for tokens, False for padding, which is at the end of a row."""

    @staticmethod
    def of(mask_BL: Tensor, task: int) -> "PaddedLayout":
        """The layout of a batch in which all rows are of one task."""
        rows, width = mask_BL.shape
        borders = torch.arange(rows + 1, dtype=torch.int32, device=mask_BL.device) * width
        empty = ((0, 0),) * task
        return PaddedLayout(borders, (), (*empty, (0, rows)), (*empty, (0, rows * width)), mask_BL=mask_BL)

    @property
    def mask(self) -> Tensor:
        assert self.mask_BL is not None
        return self.mask_BL

    @property
    def max_length(self) -> int:
        return self.mask.shape[1]

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """All rows as they are."""
        rows, width = self.mask.shape
        return (Bucket(None, None, rows, width, self.mask[:, None, None, :]),)

    def positions(self, tokens: int) -> Tensor:
        rows, width = self.mask.shape
        return torch.arange(width, device=self.mask.device).expand(rows, width).reshape(-1)

    def sequence_indices(self, tokens: int) -> Tensor:
        rows, width = self.mask.shape
        return torch.arange(rows, device=self.mask.device)[:, None].expand(rows, width).reshape(-1)

    @property
    def as_one_task(self) -> "PaddedLayout":
        return PaddedLayout.of(self.mask, 0)

    def with_prefix(self, length: int) -> "PaddedLayout":
        mask_BL = torch.cat([torch.ones_like(self.mask[:, :1]).expand(-1, length), self.mask], dim=1)
        task = len(self.token_ranges) - 1
        return replace(PaddedLayout.of(mask_BL, task), prefix=self.prefix + length)


@dataclass(frozen=True)
class PaddedEncoded(Encoded):
    """The hidden states of a padded batch: the input of a head."""

    rows: int = 1
    """How many rows, or texts with windows, are one example."""
    windows_NW: Tensor | None = None
    """The rows that are the windows of each text (see `WINDOWS`); None: every text is one row."""

    def given_options(self) -> Tensor:
        """[B, 1]: every row is one option. How many an example has is known only outside of the graph."""
        return (self._mask_BL.sum(1) > LENGTH_OF_MISSING)[:, None]

    def pool(self, pooling: Pooling) -> Tensor:
        """One vector for each text, and zeros for the missing texts of the last example.

        So a batch of any number of rows can be computed, also where only the outputs of other tasks are of interest.
        """
        vectors_ND = self.pool_sequences(pooling)
        if self.windows_NW is not None:
            vectors_ND = pool_rows(vectors_ND, self.windows_NW, self.window_pool)
        if self.rows == 1:
            return vectors_ND
        size = (vectors_ND.shape[0] + self.rows - 1) // self.rows * self.rows
        missing_RD = vectors_ND.new_zeros(self.rows - 1, vectors_ND.shape[1])
        return torch.cat([vectors_ND, missing_RD])[:size]

    def pool_sequences(self, pooling: Pooling) -> Tensor:
        """One vector for each row."""
        h_BLD = self.hidden_TD.view(*self._mask_BL.shape, -1)
        if pooling == "mean":
            real_BL1 = self._mask_BL[..., None].to(h_BLD.dtype)
            return (h_BLD * real_BL1).sum(1) / real_BL1.sum(1)
        first_BD = h_BLD[:, 0]
        return self.pooler(first_BD) if pooling == "pooler" else first_BD

    @property
    def _mask_BL(self) -> Tensor:
        assert isinstance(self.layout, PaddedLayout)
        return self.layout.mask


def pool_rows(vectors_BD: Tensor, windows_NW: Tensor, pool: WindowPool) -> Tensor:
    """The mean, or the largest of each number, of the vectors of each text's windows: [N, D]."""
    given_NW1 = (windows_NW >= 0)[..., None]
    own_NWD = vectors_BD[windows_NW.clamp(min=0)]
    if pool == "max":
        return own_NWD.masked_fill(~given_NW1, float("-inf")).amax(1)
    given_NW1 = given_NW1.to(own_NWD.dtype)
    return (own_NWD * given_NW1).sum(1) / given_NW1.sum(1)


def rows_per_example(head: Head, texts: int) -> int:
    """How many rows of a batch are one example of the task: see `ROWS`."""
    return ROWS[head.reading] if texts == 2 else 1


def reads_windows(head: Head) -> bool:
    """Whether a long text is several rows of the batch, whose vectors become one."""
    return head.windows is not None and head.windows.pool != "first"


def unsupported(head: Head) -> str | None:
    """Why the outputs of a head cannot be computed in a padded graph; None: they can."""
    if not head.kind.has_predictions:
        return f"it is of kind {head.labels.kind_name} and has no predictions"
    if head.pooling is None and not head.kind.per_word:
        return f"its head {type(head).__name__} reads all tokens of a text; only heads that pool or tag are supported"
    return None


class PaddedModel(nn.Module):
    """Maps a padded batch to the outputs of several tasks, in their order.

    An output is that of the task's head: [B, C] or [B]; for pairs that are two or three rows of the batch, [B / 2, ...]
    or [B / 3, ...], rounded up; for options, [B, 1]; for tags of words, the scores of all tokens, [B, L, C]. Tasks with
    windows have N texts, as the input `windows` says, in place of B rows.
    """

    def __init__(self, model: MultiTaskModel, tasks: Sequence[str], texts: Mapping[str, int]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(tasks)
        self.rows = {task: rows_per_example(model.head(task), texts[task]) for task in tasks}
        has_windows = any(reads_windows(model.head(task)) for task in tasks)
        self.inputs = (*INPUTS, WINDOWS) if has_windows else INPUTS

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, windows: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the outputs of all tasks."""
        mask_BL = attention_mask.bool()
        hidden: dict[str | None, Tensor] = {}
        outputs = []
        for task in self.names:
            layout = PaddedLayout.of(mask_BL, self.model.tasks.index(task))
            key = task if self.model.adapter.task_parameters(task) else None
            if key not in hidden:
                hidden[key] = self._encode(input_ids, token_type_ids, layout)
            outputs.append(self._output(task, hidden[key], layout, windows))
        return tuple(outputs)

    def _encode(self, input_ids: Tensor, token_type_ids: Tensor, layout: PaddedLayout) -> Tensor:
        stream = Stream(input_ids.reshape(-1), layout.positions(0), token_type_ids.reshape(-1), layout)
        return self.model.encode(stream)

    def _output(self, task: str, hidden_TD: Tensor, layout: PaddedLayout, windows_NW: Tensor | None) -> Tensor:
        encoder, head = self.model.encoder, self.model.head(task)
        encoded = PaddedEncoded(
            hidden_TD,
            layout,
            self.model.tasks.index(task),
            encoder.pool,
            window_pool="mean" if head.windows is None else head.windows.pool,
            rows=self.rows[task],
            windows_NW=windows_NW if reads_windows(head) else None,
        )
        output: Tensor = head(encoded)
        if not head.kind.per_word:
            return output
        return output[:, 0, :-1].reshape(*layout.mask.shape, -1)  # the last column says which tokens are words
