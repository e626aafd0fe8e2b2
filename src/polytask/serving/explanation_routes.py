"""The endpoints that the page / needs besides predictions: explanations of them, and examples of tasks."""

from typing import Annotated

from fastapi import Body, FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from polytask.serving import requests as bodies
from polytask.serving.explainer import Question
from polytask.serving.failures import Failure
from polytask.serving.forms import explanation_json, read_input, read_tasks
from polytask.serving.request_examples import explain_examples
from polytask.serving.responses import respond
from polytask.serving.server import is_loopback
from polytask.serving.service import Service


def add_explanations(app: FastAPI, service: Service) -> None:
    """Adds /explain and /examples."""

    @app.post("/explain", response_model=bodies.ExplainResponse, tags=["predictions"])
    async def explain(
        body: Annotated[bodies.ExplainRequest, Body(openapi_examples=explain_examples(service.model))],
    ) -> Response:
        """Measure which words one prediction depends on."""
        model = service.model
        read_tasks(model, body.task)
        one = read_input(body.input, service.limits)
        service.metrics.count_request("/explain", (body.task,))
        try:
            if isinstance(one, Failure):
                raise one
            question = Question(body.task, one, body.method, body.label, body.word)
            found = await service.explainer.explain(model, question, service.limits)
        except Failure as failure:
            failure.tasks = (body.task,)
            raise
        return respond(explanation_json(found))

    @app.get("/examples", response_model=bodies.ExamplesResponse, tags=["model"])
    async def examples(request: Request) -> Response:
        """The texts of a few rows of each task's dev split, if the server was started with them."""
        # A page of another site can make its own name point to this machine, but cannot hide that name.
        may_see = not service.examples_only_here or is_loopback(host_name(request.headers.get("host", "")))
        return respond({"examples": await run_in_threadpool(service.examples) if may_see else {}})


def host_name(header: str) -> str:
    """The name in the header Host, without the port."""
    name, _, port = header.rpartition(":")
    return (name if port.isdigit() else header).strip("[]")
