"""The responses of a server: JSON bodies, and one form for all errors."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from polytask.serving import requests as bodies
from polytask.serving.failures import STATUS, Failure
from polytask.serving.guard import to_json
from polytask.serving.service import Service

Responses = dict[int | str, dict[str, Any]]
STATUSES = sorted(set(STATUS.values()))
ERRORS: Responses = {status: {"model": bodies.ErrorResponse} for status in STATUSES}
OPENAI_ERRORS: Responses = {status: {"model": bodies.OpenAIErrorResponse} for status in STATUSES}


def respond(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with a JSON body."""
    return Response(to_json(content), status, headers, media_type="application/json")


def respond_results(results: list[dict[str, Any] | Failure], **more: Any) -> Response:
    """The results of all inputs. If none could be answered, the response is the first error."""
    content: dict[str, Any] = {
        **more,
        "results": [one.as_json() if isinstance(one, Failure) else one for one in results],
    }
    failures = [one for one in results if isinstance(one, Failure)]
    if failures and len(failures) == len(results):
        return respond(failures[0].as_json() | content, failures[0].status)
    return respond(content)


def add_errors(app: FastAPI, service: Service) -> None:
    """Gives every error the same form."""

    @app.exception_handler(Failure)
    async def failed(request: Request, failure: Failure) -> Response:
        return _respond_failure(service, request, failure)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        problems = [f"{'.'.join(map(str, one['loc'][1:])) or 'body'}: {one['msg']}" for one in error.errors()[:10]]
        return _respond_failure(service, request, Failure("invalid_request", "; ".join(problems)))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        error_type = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        response = _respond_failure(service, request, Failure(error_type, str(error.detail)))
        response.headers.update({k: v for k, v in (error.headers or {}).items() if k.lower() == "allow"})
        return response


def _respond_failure(service: Service, request: Request, failure: Failure) -> Response:
    known = {getattr(route, "path", "") for route in request.app.routes}
    endpoint = request.url.path if request.url.path in known else "other"
    service.metrics.count_failure(endpoint, failure.tasks, failure.error_type)
    return respond(failure.as_json(request.url.path), failure.status, failure.headers)
