"""The HTTP endpoints of a server. Knows FastAPI; what they compute is in `Service`."""

import base64
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from fastapi import Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from polytask.serving import requests as bodies
from polytask.serving.explainer import Question
from polytask.serving.failures import STATUS, Failure
from polytask.serving.forms import (
    describe_model,
    describe_tasks,
    explanation_json,
    prediction_json,
    read_input,
    read_inputs,
    read_tasks,
    score_of,
    scoring_task,
)
from polytask.serving.guard import Guard, to_json
from polytask.serving.page import add_page
from polytask.serving.reference_page import HEADERS, reference_page
from polytask.serving.service import Service
from polytask.types import Prediction, unknown
from polytask.version import __version__

NOT_READY = Failure("not_ready", "not ready: stopping, not warm yet, or the last batch failed")
Responses = dict[int | str, dict[str, Any]]
STATUSES = sorted(set(STATUS.values()))
ERRORS: Responses = {status: {"model": bodies.ErrorResponse} for status in STATUSES}
OPENAI_ERRORS: Responses = {status: {"model": bodies.OpenAIErrorResponse} for status in STATUSES}


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
    add_state(app, service)
    add_predictions(app, service)
    add_explanations(app, service)
    add_embeddings(app, service)
    add_errors(app, service)
    add_page(app)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        page = reference_page(app.openapi(), str(request.base_url).rstrip("/"))
        return HTMLResponse(page, headers=HEADERS)

    endpoints = frozenset(route.path for route in app.routes if hasattr(route, "path"))
    app.add_middleware(Guard, service=service, api_key=api_key, endpoints=endpoints)
    return app


def add_errors(app: FastAPI, service: Service) -> None:
    """Gives every error the same form."""

    @app.exception_handler(Failure)
    async def failed(request: Request, failure: Failure) -> Response:
        return respond_failure(service, request, failure)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        problems = [f"{'.'.join(map(str, one['loc'][1:])) or 'body'}: {one['msg']}" for one in error.errors()[:10]]
        return respond_failure(service, request, Failure("invalid_request", "; ".join(problems)))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        error_type = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        response = respond_failure(service, request, Failure(error_type, str(error.detail)))
        response.headers.update({k: v for k, v in (error.headers or {}).items() if k.lower() == "allow"})
        return response


def respond(content: Any, status: int = 200) -> Response:
    headers = {"retry-after": "1"} if status in (STATUS["queue_full"], STATUS["shutting_down"]) else {}
    return Response(to_json(content), status, headers, media_type="application/json")


def respond_failure(service: Service, request: Request, failure: Failure) -> Response:
    known = {getattr(route, "path", "") for route in request.app.routes}
    endpoint = request.url.path if request.url.path in known else "other"
    service.metrics.count_failure(endpoint, failure.tasks, failure.error_type)
    return respond(failure.as_json(request.url.path), failure.status)


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


# --- the server's state -----------------------------------------------------------------------------------------------
def add_state(app: FastAPI, service: Service) -> None:
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
        return respond(NOT_READY.as_json() | {"ready": False}, NOT_READY.status)

    @app.get("/health", tags=["state"])
    async def health() -> Response:
        """The state in detail."""
        state = {"ready": service.ready, "warm": service.warm, "last_batch_failed": service.batcher.last_batch_failed}
        queue = {"queue_inputs": service.batcher.inputs, "queue_tokens": service.batcher.tokens}
        return (
            respond(state | queue) if service.ready else respond(NOT_READY.as_json() | state | queue, NOT_READY.status)
        )

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
        limits = {name: getattr(service.limits, name) for name in service.limits.__dataclass_fields__}
        return respond({"version": __version__, **describe_model(service.model, service.name), "limits": limits})


# --- predictions ------------------------------------------------------------------------------------------------------
def add_predictions(app: FastAPI, service: Service) -> None:
    @app.post("/predict", response_model=bodies.PredictResponse, tags=["predictions"])
    async def predict(
        body: Annotated[bodies.PredictRequest, Body(openapi_examples=bodies.PREDICT_EXAMPLES)],
    ) -> Response:
        """Predict one task, several or all, for one input or many. An input with an error does not fail the others."""
        model = service.model
        examples, tasks = read_inputs(body.inputs, service.limits), read_tasks(model, body.tasks)
        found = await service.predict("/predict", examples, tasks, body.truncate, model)
        results: list[dict[str, Any] | Failure] = [
            one
            if isinstance(one, Failure)
            else {"predictions": {task: prediction_json(own, body.probabilities) for task, own in one.items()}}
            for one in found
        ]
        return respond_results(results)

    async def scores(
        endpoint: str, pairs: list[Any], task: str | None, truncate: Any
    ) -> tuple[str, list[Prediction | Failure]]:
        model = service.model
        chosen = scoring_task(model, task)
        found = await service.predict(endpoint, read_inputs(pairs, service.limits), (chosen,), truncate, model)
        return chosen, [one if isinstance(one, Failure) else one[chosen] for one in found]

    @app.post("/similarity", response_model=bodies.SimilarityResponse, tags=["predictions"])
    async def similarity(
        body: Annotated[bodies.SimilarityRequest, Body(openapi_examples=bodies.SIMILARITY_EXAMPLES)],
    ) -> Response:
        """Score pairs of texts with a task that can: a score, a cosine, or the probability of yes."""
        task, found = await scores("/similarity", body.pairs, body.task, body.truncate)
        results: list[dict[str, Any] | Failure] = [
            one if isinstance(one, Failure) else {"score": score_of(one), "truncated": one.truncated} for one in found
        ]
        labels = service.model.predictor.bundle.labels[task]
        has_range = labels.kind == "score" and labels.bounded
        return respond_results(results, task=task, range=[labels.low, labels.high] if has_range else None)

    @app.post("/rerank", response_model=bodies.RerankResponse, tags=["predictions"])
    async def rerank(
        body: Annotated[bodies.RerankRequest, Body(openapi_examples=bodies.RERANK_EXAMPLES)],
    ) -> Response:
        """Order documents by their score with a query, the highest first."""
        pairs = [{"text": body.query, "text2": "" if one is None else one} for one in body.documents]
        task, found = await scores("/rerank", pairs, body.task, body.truncate)
        errors = [{"index": i, **one.as_json()} for i, one in enumerate(found) if isinstance(one, Failure)]
        ranked: list[dict[str, Any]] = [
            {"index": i, "score": score_of(one), "truncated": one.truncated}
            for i, one in enumerate(found)
            if not isinstance(one, Failure)
        ]
        ranked.sort(key=lambda one: -one["score"])
        if body.return_documents:
            ranked = [{**one, "document": body.documents[one["index"]]} for one in ranked]
        content = {"task": task, "results": ranked[: body.top_n], "errors": errors}
        failures = [one for one in found if isinstance(one, Failure)]
        if failures and not ranked:
            return respond(failures[0].as_json() | content, failures[0].status)
        return respond(content)


# --- explanations -----------------------------------------------------------------------------------------------------
def add_explanations(app: FastAPI, service: Service) -> None:
    @app.post("/explain", response_model=bodies.ExplainResponse, tags=["explanations"])
    async def explain(
        body: Annotated[bodies.ExplainRequest, Body(openapi_examples=bodies.EXPLAIN_EXAMPLES)],
    ) -> Response:
        """Measure which words one prediction depends on."""
        model = service.model
        read_tasks(model, body.task)
        example = read_input(body.input, service.limits)
        service.metrics.count_request("/explain", (body.task,))
        try:
            if isinstance(example, Failure):
                raise example
            question = Question(body.task, example, body.method, body.label, body.word)
            found = await service.explainer.explain(model, question, service.limits)
        except Failure as failure:
            failure.tasks = (body.task,)
            raise
        return respond(explanation_json(found))

    @app.get("/examples", response_model=bodies.ExamplesResponse, tags=["model"])
    async def examples() -> Response:
        """The texts of a few rows of each task's dev split, if the server was started with them."""
        return respond({"examples": await run_in_threadpool(service.examples)})


# --- embeddings -------------------------------------------------------------------------------------------------------
def add_embeddings(app: FastAPI, service: Service) -> None:
    @app.post("/embed", response_model=bodies.EmbedResponse, tags=["embeddings"])
    async def embed(
        body: Annotated[bodies.EmbedRequest, Body(openapi_examples=bodies.EMBED_EXAMPLES)],
    ) -> Response:
        """Embed texts: the mean of the encoder's last hidden states."""
        tasks = service.model.predictor.tasks
        if body.task is not None and body.task not in tasks:
            raise Failure("unknown_task", unknown("embed", body.task, tasks, "task"))
        found = await service.embed("/embed", read_inputs(body.inputs, service.limits), body.task, body.truncate)
        results: list[dict[str, Any] | Failure] = []
        for one in found:
            if isinstance(one, Failure):
                results.append(one)
                continue
            vector = normalized(one.vector) if body.normalize else one.vector
            results.append({"embedding": vector.tolist(), "tokens": one.tokens, "truncated": one.truncated})
        return respond_results(results)

    @app.get("/v1/models", responses=OPENAI_ERRORS, tags=["embeddings"])
    async def models() -> Response:
        """The names that /v1/embeddings accepts, as OpenAI lists models."""
        names = dict.fromkeys((service.name, *service.model.predictor.tasks))
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "polytask"} for name in names]
        return respond({"object": "list", "data": data})

    @app.post("/v1/embeddings", response_model=bodies.EmbeddingsResponse, responses=OPENAI_ERRORS, tags=["embeddings"])
    async def embeddings(
        body: Annotated[bodies.EmbeddingsRequest, Body(openapi_examples=bodies.EMBEDDINGS_EXAMPLES)],
    ) -> Response:
        """Embed texts as OpenAI's endpoint of this name does: vectors of length 1."""
        tasks, hidden = service.model.predictor.tasks, service.model.predictor.bundle.model.encoder.shape.hidden
        if body.model not in (service.name, *tasks):
            raise Failure("not_found", unknown("model", body.model, (service.name, *tasks), "model"))
        if body.dimensions not in (None, hidden):
            raise Failure("invalid_request", f"dimensions: must be {hidden}, found {body.dimensions}")
        task = body.model if body.model in tasks and body.model != service.name else None
        found = await service.embed("/v1/embeddings", read_inputs(body.input, service.limits), task)
        data, tokens = list[dict[str, Any]](), 0
        for index, one in enumerate(found):
            if isinstance(one, Failure):
                raise Failure(one.error_type, f"input {index} (counted from 0): {one}")
            vector = normalized(one.vector)
            tokens += one.tokens
            is_list = body.encoding_format == "float"
            encoded = vector.tolist() if is_list else base64.b64encode(vector.astype("<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": encoded})
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return respond({"object": "list", "data": data, "model": body.model, "usage": usage})


def normalized(vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return vector / np.float32(max(float(np.linalg.norm(vector)), 1e-12))
