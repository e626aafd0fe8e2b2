"""The outermost layer of a server: the API key, the number of open requests, and the size of bodies as they arrive."""

import asyncio
import hmac
import json
import logging
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from polytask.serving.failures import STATUS, Failure
from polytask.serving.page import FILES
from polytask.serving.service import Service

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]

OPEN_PATHS = ("/live", "/ready")
"""What a load balancer may ask without a key, also while the server is busy or stopping."""
PAGE_PATHS = frozenset(FILES)
"""What a browser may ask without a key: the page asks the user for it."""


class Guard:
    """ASGI middleware that refuses requests before they are read."""

    def __init__(self, app: AsgiApp, service: Service, api_key: str | None, endpoints: frozenset[str]) -> None:
        self.app, self.service, self.endpoints = app, service, endpoints
        self.api_key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        endpoint = scope["path"] if scope["path"] in self.endpoints else "other"
        started = False

        async def send_counted(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self.service.metrics.count_response(endpoint, message["status"])
            await send(message)

        self.service.open_requests += 1
        try:
            await self._answer(scope, receive, send_counted)
        except Failure as failure:
            self.service.metrics.count_failure(endpoint, ("",), failure.error_type)
            await send_failure(send_counted, failure, scope["path"], close=True)
        except Exception as error:
            # The error's message may quote a text, which must not be in a log.
            frames = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s failed with %s:\n%s", endpoint, type(error).__name__, frames)
            self.service.metrics.count_failure(endpoint, ("",), "internal_error")
            if not started:
                crash = Failure("internal_error", "an internal error occurred")
                await send_failure(send_counted, crash, scope["path"])
        finally:
            self.service.open_requests -= 1

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self.service.stopping:
            raise Failure("shutting_down", "the server is shutting down")
        is_open = self.api_key is None or scope["path"] in PAGE_PATHS
        if not is_open and not self._has_key(headers.get(b"authorization", b"")):
            raise Failure("unauthorized", "the header `Authorization: Bearer KEY` must have the server's API key")
        if self.service.open_requests > self.service.limits.max_requests:
            full = "too many requests are open (max_requests); try again later"
            raise Failure("too_many_requests", full, self.service.batcher.seconds)
        try:
            async with asyncio.timeout(self.service.limits.deadline_ms / 1000):
                body = await self._read(headers, receive)
        except TimeoutError:
            raise Failure("body_timeout", "the request did not arrive completely within deadline_ms") from None
        if body is None:  # the client has gone
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, replay, send)

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The body, refused as soon as it is known to be too large; None if the client disconnects."""
        most = self.service.limits.max_body_bytes
        failure = Failure("body_too_large", f"the body has more than {most:,} bytes (max_body_bytes)")
        announced = headers.get(b"content-length", b"")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > most):
            raise failure
        pieces, size = list[bytes](), 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > most:
                raise failure
            if not message.get("more_body", False):
                return b"".join(pieces)

    def _has_key(self, authorization: bytes) -> bool:
        assert self.api_key is not None
        scheme, _, key = authorization.partition(b" ")
        return hmac.compare_digest(key.strip(), self.api_key) and scheme.lower() == b"bearer"


async def send_failure(send: Send, failure: Failure, path: str, close: bool = False) -> None:
    """Sends a whole response."""
    body = to_json(failure.as_json(path))
    headers = {"content-type": "application/json", "content-length": str(len(body)), **failure.headers}
    headers |= {"connection": "close"} if close else {}
    headers |= {"www-authenticate": "Bearer"} if failure.status == STATUS["unauthorized"] else {}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": failure.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def to_json(content: Any) -> bytes:
    """JSON in ASCII, which can also hold half of a surrogate pair that a client sent."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
