"""The endpoints that predict: tasks for any inputs, scores of pairs, and documents in the order of their scores."""

from typing import Annotated, Any

from fastapi import Body, FastAPI, Response

from polytask.serving import requests as bodies
from polytask.serving.failures import Failure
from polytask.serving.forms import prediction_json, read_inputs, read_tasks, score_of, score_range, scoring_task
from polytask.serving.items import Truncation
from polytask.serving.mixed import MixedPredictor
from polytask.serving.request_examples import RERANK_EXAMPLES, SIMILARITY_EXAMPLES, predict_examples
from polytask.serving.responses import respond, respond_results
from polytask.serving.service import Service
from polytask.types import Prediction


def add_predictions(app: FastAPI, service: Service) -> None:
    """Adds /predict, /similarity and /rerank."""

    @app.post("/predict", response_model=bodies.PredictResponse, tags=["predictions"])
    async def predict(
        body: Annotated[bodies.PredictRequest, Body(openapi_examples=predict_examples(service.model))],
    ) -> Response:
        """Predict one task, several or all, for one input or many. An input with an error does not fail the others."""
        model = service.model
        inputs, tasks = read_inputs(body.inputs, service.limits), read_tasks(model, body.tasks)
        found = await service.predict("/predict", inputs, tasks, body.truncate, model)
        results: list[dict[str, Any] | Failure] = [
            one
            if isinstance(one, Failure)
            else {"predictions": {task: prediction_json(own, body.probabilities) for task, own in one.items()}}
            for one in found
        ]
        return respond_results(results)

    async def scores(
        endpoint: str, model: MixedPredictor, pairs: list[Any], task: str | None, truncate: Truncation
    ) -> tuple[str, list[Prediction | Failure]]:
        chosen = scoring_task(model, task)
        found = await service.predict(endpoint, read_inputs(pairs, service.limits), (chosen,), truncate, model)
        return chosen, [one if isinstance(one, Failure) else one[chosen] for one in found]

    @app.post("/similarity", response_model=bodies.SimilarityResponse, tags=["predictions"])
    async def similarity(
        body: Annotated[bodies.SimilarityRequest, Body(openapi_examples=SIMILARITY_EXAMPLES)],
    ) -> Response:
        """Score pairs of texts with a task that can: a score, a cosine, or the probability of yes."""
        model = service.model
        task, found = await scores("/similarity", model, body.pairs, body.task, body.truncate)
        results: list[dict[str, Any] | Failure] = [
            one if isinstance(one, Failure) else {"score": score_of(one), "truncated": one.truncated} for one in found
        ]
        return respond_results(results, task=task, range=score_range(model, task))

    @app.post("/rerank", response_model=bodies.RerankResponse, tags=["predictions"])
    async def rerank(
        body: Annotated[bodies.RerankRequest, Body(openapi_examples=RERANK_EXAMPLES)],
    ) -> Response:
        """Order documents by their score with a query, the highest first."""
        pairs = [{"text": body.query, "text2": "" if one is None else one} for one in body.documents]
        task, found = await scores("/rerank", service.model, pairs, body.task, body.truncate)
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
