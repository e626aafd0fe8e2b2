"""The inputs of requests, and their tokens, ready to be computed together with those of others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from polytask.serving.examples import Example
from polytask.text.packing import InputFormat
from polytask.text.texts import Texts
from polytask.types import Prediction

if TYPE_CHECKING:
    from polytask.serving.mixed import MixedPredictor

Truncation = Literal["model", "end", "start", "error"]
"""How a request wants long texts to be cut: as the model was trained, at the end, at the start, or not at all."""
Shape = int | Literal["options"]
"""What an example consists of: its number of texts, or a text and its options."""
Group = tuple[str, ...]
"""Tasks that share a pass of the encoder over the same texts."""


@dataclass(frozen=True)
class Input:
    """One input of a request."""

    example: Example
    """Its texts; with options, the text followed by its options."""
    has_options: bool = False

    @property
    def shape(self) -> Shape:
        return "options" if self.has_options else len(self.example)


@dataclass(frozen=True)
class Item:
    """The tokens of one example, for one pass of the encoder."""

    model: "MixedPredictor"
    """The model whose tokens they are."""
    group: Group
    """The tasks that could share the pass; empty for an embedding."""
    tasks: tuple[str, ...]
    """The tasks to predict; for an embedding, the task whose embedding it is, or none."""
    example: Example
    texts: Texts
    """The tokens of this single example."""
    form: InputFormat
    """How its texts become sequences."""
    lengths_1W: npt.NDArray[np.int64]
    """The number of tokens of each text before truncation."""
    full_length: int
    """The number of tokens of the longest sequence before truncation, with special tokens."""
    tokens: int
    """The number of tokens in a stream."""
    cut_start: bool
    """Whether the start of the text is cut off, not the end."""
    truncated: bool

    @property
    def embedding_task(self) -> str | None:
        """For an embedding, the task whose embedding it is."""
        return self.tasks[0] if self.tasks else None

    @property
    def width(self) -> int:
        """The number of texts, with those that fill the places of missing options."""
        return int(self.lengths_1W.shape[1])


@dataclass(frozen=True)
class Embedded:
    """The embedding of an example."""

    vector: npt.NDArray[np.float32]
    tokens: int
    """The number of tokens before truncation, with special tokens."""
    truncated: bool
    windows: int = 1
    """The number of windows that the text was read in."""


Answer = Mapping[str, Prediction] | Embedded
"""The predictions by task, or the embedding."""
