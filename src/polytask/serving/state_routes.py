"""The endpoints that describe the server: its state, its metrics, its tasks and its limits."""

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse

from polytask.serving.failures import Failure
from polytask.serving.forms import describe_model, describe_tasks
from polytask.serving.responses import respond
from polytask.serving.service import Service
from polytask.version import __version__

NOT_READY = Failure("not_ready", "not ready: stopping, not warm yet, or the last batch failed")


def add_state(app: FastAPI, service: Service) -> None:
    """Adds /live, /ready, /health, /metrics, /tasks and /info."""

    @app.get("/live", tags=["state"])
    async def live() -> Response:
        """Whether the process answers at all."""
        return respond({"live": True})

    @app.get("/ready", tags=["state"])
    async def ready() -> Response:
        """Whether requests will be answered: the model is warm, and the last batch succeeded."""
        service.probe()
        if service.ready:
            return respond({"ready": True})
        return respond(NOT_READY.as_json() | {"ready": False}, NOT_READY.status, NOT_READY.headers)

    @app.get("/health", tags=["state"])
    async def health() -> Response:
        """The state in detail."""
        ready, batcher = service.ready, service.batcher
        state: dict[str, Any] = {"ready": ready, "warm": service.warm, "last_batch_failed": batcher.last_batch_failed}
        state |= {"queue_inputs": batcher.inputs, "queue_tokens": batcher.tokens, "queue_seconds": batcher.seconds}
        return respond(state) if ready else respond(NOT_READY.as_json() | state, NOT_READY.status, NOT_READY.headers)

    @app.get("/metrics", response_class=PlainTextResponse, tags=["state"])
    async def metrics() -> Response:
        """Counters and histograms for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/tasks", tags=["model"])
    async def tasks() -> Response:
        """The tasks, with their classes and ranges."""
        return respond({"tasks": describe_tasks(service.model)})

    @app.get("/info", tags=["model"])
    async def info() -> Response:
        """The model and the server's limits."""
        model = describe_model(service.model, service.name)
        return respond({"version": __version__, **model, "limits": asdict(service.limits)})
