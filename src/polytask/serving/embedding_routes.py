"""The endpoints for embeddings, two of them as OpenAI's clients expect them."""

import base64
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from fastapi import Body, FastAPI, Response

from polytask.serving import requests as bodies
from polytask.serving.failures import Failure
from polytask.serving.forms import read_texts
from polytask.serving.request_examples import EMBED_EXAMPLES, embeddings_examples
from polytask.serving.responses import OPENAI_ERRORS, respond, respond_results
from polytask.serving.service import Service
from polytask.types import unknown


def add_embeddings(app: FastAPI, service: Service) -> None:
    """Adds /embed, /v1/models and /v1/embeddings."""

    @app.post("/embed", response_model=bodies.EmbedResponse, tags=["embeddings"])
    async def embed(
        body: Annotated[bodies.EmbedRequest, Body(openapi_examples=EMBED_EXAMPLES)],
    ) -> Response:
        """Embed texts: the mean of the encoder's last hidden states."""
        model = service.model
        if body.task is not None and body.task not in model.predictor.tasks:
            raise Failure("unknown_task", unknown("embed", body.task, model.predictor.tasks, "task"))
        found = await service.embed("/embed", read_texts(body.inputs, service.limits), body.task, body.truncate, model)
        results: list[dict[str, Any] | Failure] = []
        for one in found:
            if isinstance(one, Failure):
                results.append(one)
                continue
            vector = normalized(one.vector) if body.normalize else one.vector
            sizes = {"tokens": one.tokens, "truncated": one.truncated, "windows": one.windows}
            results.append({"embedding": vector.tolist(), **sizes})
        return respond_results(results)

    @app.get("/v1/models", responses=OPENAI_ERRORS, tags=["embeddings"])
    async def models() -> Response:
        """The names that /v1/embeddings accepts, as OpenAI lists models."""
        names = dict.fromkeys((service.name, *service.model.predictor.tasks))
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "polytask"} for name in names]
        return respond({"object": "list", "data": data})

    @app.post("/v1/embeddings", response_model=bodies.EmbeddingsResponse, responses=OPENAI_ERRORS, tags=["embeddings"])
    async def embeddings(
        body: Annotated[bodies.EmbeddingsRequest, Body(openapi_examples=embeddings_examples(service.name))],
    ) -> Response:
        """Embed texts as OpenAI's endpoint of this name does: vectors of length 1."""
        model, name = service.model, service.name
        tasks, hidden = model.predictor.tasks, model.predictor.bundle.model.encoder.shape.hidden
        if body.model not in (name, *tasks):
            raise Failure("not_found", unknown("model", body.model, (name, *tasks), "model"))
        if body.dimensions not in (None, hidden):
            raise Failure("invalid_request", f"dimensions: must be {hidden}, found {body.dimensions}")
        task = body.model if body.model in tasks and body.model != name else None
        found = await service.embed("/v1/embeddings", read_texts(body.input, service.limits), task, model=model)
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
    """The vector with length 1."""
    return vector / np.float32(max(float(np.linalg.norm(vector)), 1e-12))
