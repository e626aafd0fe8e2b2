"""The limits of a server in one place, checked together: a request within all of them can be answered."""

from dataclasses import dataclass, fields

from polytask.kinds.options import FEWEST_OPTIONS, MOST_OPTIONS
from polytask.types import UserError

BYTES_PER_CHARACTER = 4
"""The most bytes of a character in UTF-8."""
ENVELOPE = 1024
"""The bytes of a request besides its texts."""
BATCH_TOKENS = 8192
"""`max_batch_tokens`, unless it is given or the model's longest input has more tokens."""
QUEUED_REQUESTS = 4
"""How many of the largest requests the queue has room for, unless `max_queue_tokens` is given."""
QUEUE_SECONDS = 1.0
"""`max_queue_seconds`, unless it is given or more than half of `deadline_ms`."""
LOWEST = {"max_wait_ms": 0, "max_queue_seconds": 0.001, "max_options": FEWEST_OPTIONS}
"""The lowest value of each limit; 1 for the others."""


@dataclass(frozen=True)
class ServingLimits:
    """What a server accepts. Every request beyond a limit is refused with an error that names the limit."""

    max_body_bytes: int = 8_000_000
    """Bytes of a request's body. They are counted while they arrive."""
    max_inputs: int = 256
    """Inputs of a request."""
    max_characters: int = 100_000
    """Characters of an input. They are counted before the input is tokenized."""
    max_options: int = 16
    """Options of an input, for kind choice."""
    max_requests: int = 1024
    """Requests that are answered at the same time, from their first byte on."""
    max_queue_inputs: int = 4096
    """Inputs that are waiting or being computed."""
    max_queue_seconds: float | None = None
    """Seconds of work before a new request, at the pace of recent batches. Default: 1, or half of `deadline_ms`."""
    max_queue_tokens: int | None = None
    """Tokens that are waiting. Default: those of four requests of `max_inputs` inputs of the longest kind."""
    max_batch_tokens: int | None = None
    """Tokens that are computed at once. Default: 8192, or those of the longest input, if it has more."""
    max_wait_ms: float = 5.0
    """Milliseconds that a batch with fewer inputs than lately waits for the next one."""
    deadline_ms: float = 30_000.0
    """Milliseconds in which a request must arrive, and then be answered: tokenized, queued and computed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            lowest = LOWEST.get(field.name, 1)
            if value is not None and not lowest <= value < float("inf"):
                raise UserError(f"serve: {field.name}: must be at least {lowest}, found {value}")
        if self.max_options > MOST_OPTIONS:
            raise UserError(f"serve: max_options: must be at most {MOST_OPTIONS}, found {self.max_options}")

    def batch_tokens(self, longest_sequence: int) -> int:
        """`max_batch_tokens`, or its default for a model."""
        return max(BATCH_TOKENS, longest_sequence) if self.max_batch_tokens is None else self.max_batch_tokens

    def checked(self, longest_sequence: int, longest_input: int) -> "CheckedLimits":
        """The limits of a server, without defaults; a UserError if a request within them could be refused.

        `longest_sequence` is the number of tokens that must be computed at once, `longest_input` that of an input that
        is predicted by all tasks.
        """
        largest_request = self.max_inputs * longest_input
        batch_tokens, queue_tokens = self.batch_tokens(longest_sequence), self.max_queue_tokens
        if queue_tokens is None:
            queue_tokens = max(QUEUED_REQUESTS * largest_request, batch_tokens)
        queue_seconds = self.max_queue_seconds or min(QUEUE_SECONDS, self.deadline_ms / 2000)
        text_bytes = self.max_characters * BYTES_PER_CHARACTER + ENVELOPE
        problems = {
            f"max_batch_tokens is {batch_tokens:,}, but the longest input of this model has "
            f"{longest_sequence:,} tokens": batch_tokens < longest_sequence,
            f"max_queue_inputs is {self.max_queue_inputs:,}, but a request may have {self.max_inputs:,} inputs "
            "(max_inputs)": self.max_queue_inputs < self.max_inputs,
            f"max_queue_tokens is {queue_tokens:,}, but a request may have {largest_request:,} tokens: max_inputs "
            f"({self.max_inputs:,}) times the longest input ({longest_input:,})": queue_tokens < largest_request,
            f"max_queue_tokens is {queue_tokens:,}, less than max_batch_tokens ({batch_tokens:,})": (
                queue_tokens < batch_tokens
            ),
            f"max_body_bytes is {self.max_body_bytes:,}, but an input of max_characters ({self.max_characters:,}) may "
            f"take {text_bytes:,} bytes": self.max_body_bytes < text_bytes,
            f"max_wait_ms is {self.max_wait_ms:g}, not less than deadline_ms ({self.deadline_ms:g})": (
                self.max_wait_ms >= self.deadline_ms
            ),
            f"max_queue_seconds is {queue_seconds:g}, not less than deadline_ms ({self.deadline_ms:g}): requests would "
            "wait in vain": 1000 * queue_seconds >= self.deadline_ms,
        }
        found = [problem for problem, is_one in problems.items() if is_one]
        if found:
            raise UserError(
                "serve: limits that cannot be met together; raise one or lower the other:\n" + "\n".join(found)
            )
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {"max_batch_tokens": batch_tokens, "max_queue_tokens": queue_tokens}
        return CheckedLimits(**{**given, **defaults, "max_queue_seconds": queue_seconds})


@dataclass(frozen=True)
class CheckedLimits(ServingLimits):
    """Limits that fit a model and each other."""

    max_queue_seconds: float = QUEUE_SECONDS
    max_batch_tokens: int = BATCH_TOKENS
    max_queue_tokens: int = BATCH_TOKENS
