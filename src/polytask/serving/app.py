"""The web application of a server. What its endpoints compute is in `Service`.

A file `*_routes.py` adds some endpoints to the application.
"""

from collections.abc import Callable

from fastapi import FastAPI

from polytask.serving.embedding_routes import add_embeddings
from polytask.serving.guard import Guard
from polytask.serving.prediction_routes import add_predictions
from polytask.serving.reference_page import add_reference_page
from polytask.serving.responses import ERRORS, add_errors
from polytask.serving.service import Service
from polytask.serving.state_routes import add_state
from polytask.version import __version__

PARTS: tuple[Callable[[FastAPI, Service], None], ...] = (
    add_state,
    add_predictions,
    add_embeddings,
    add_reference_page,
    add_errors,
)


def make_app(service: Service, api_key: str | None = None) -> FastAPI:
    """The web application that answers requests with the service."""
    app = FastAPI(
        title="polytask",
        version=__version__,
        description="Predictions and embeddings of one encoder with many tasks.",
        responses=ERRORS,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    for add in PARTS:
        add(app, service)
    endpoints = frozenset(route.path for route in app.routes if hasattr(route, "path"))
    app.add_middleware(Guard, service=service, api_key=api_key, endpoints=endpoints)
    return app
