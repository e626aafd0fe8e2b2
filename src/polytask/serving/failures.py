"""The errors that a request can end with, and their HTTP status."""

from math import ceil
from typing import Any

STATUS = {
    "unauthorized": 401,
    "not_found": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "body_too_large": 413,
    "too_many_inputs": 413,
    "too_many_characters": 413,
    "too_many_options": 413,
    "invalid_request": 422,
    "unknown_task": 422,
    "invalid_input": 422,
    "empty_text": 422,
    "too_many_tokens": 422,
    "queue_full": 429,
    "too_many_requests": 429,
    "batch_failed": 500,
    "internal_error": 500,
    "deadline_exceeded": 503,
    "not_ready": 503,
    "shutting_down": 503,
}
"""Error type -> HTTP status."""
RETRIED = (429, 503)
"""The status of errors that a later attempt may not have."""


class Failure(Exception):
    """A request, or one of its inputs, that cannot be answered."""

    def __init__(self, error_type: str, message: str, retry_seconds: float = 0.0) -> None:
        assert error_type in STATUS
        super().__init__(message)
        self.error_type = error_type
        self.retry_seconds = retry_seconds
        """The estimated seconds after which the server may have room."""
        self.tasks: tuple[str, ...] = ("",)
        """The tasks of the request, for metrics; one empty name if they are not known."""

    @property
    def status(self) -> int:
        return STATUS[self.error_type]

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response: in whole seconds, when to try again, if that can help."""
        return {"retry-after": str(max(1, ceil(self.retry_seconds)))} if self.status in RETRIED else {}

    def as_json(self, path: str = "") -> dict[str, Any]:
        """The body of the response; under /v1/, `error` is an object, as OpenAI's clients expect it."""
        error: Any = str(self)
        if path.startswith("/v1/"):
            error = {"message": error, "type": self.error_type, "param": None, "code": self.error_type}
        return {"error": error, "error_type": self.error_type}
