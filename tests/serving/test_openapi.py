"""Requests generated from the OpenAPI document, valid and not: none may end in a server error."""

from collections.abc import Callable, Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode, checks

from polytask import Finished, Predictor
from polytask.serving.app import make_app
from polytask.serving.service import Service

ENDPOINTS = ["/predict", "/embed", "/similarity", "/rerank", "/v1/embeddings", "/v1/models", "/tasks", "/info"]
ENDPOINTS += ["/health", "/live", "/ready", "/metrics"]
CASES = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
CHECKS = [
    checks.not_a_server_error,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.status_code_conformance,
]


@pytest.fixture(scope="module")
def service(make_mixed_run: Callable[[str], Finished]) -> Iterator[Service]:
    """Tasks of all kinds: every form of an input is answered by some task."""
    service = Service(Predictor.load(make_mixed_run("none").folder, device="cpu"))
    service.warm_up()
    yield service
    service.close()


@pytest.fixture(scope="module")
def document(service: Service) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_asgi("/openapi.json", make_app(service))


def test_all_endpoints_are_tested(document: schemathesis.BaseSchema) -> None:
    assert {result.ok().path for result in document.get_all_operations()} == set(ENDPOINTS)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_request_ends_in_a_server_error(
    document: schemathesis.BaseSchema, endpoint: str, mode: GenerationMode
) -> None:
    (operation,) = document[endpoint].values()

    @CASES
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Case) -> None:
        response = case.call()
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400:
            assert {"error", "error_type"} <= set(response.json())

    try:
        check()
    except Unsatisfiable:  # a request without a body cannot be invalid
        assert mode is GenerationMode.NEGATIVE
        assert operation.method == "get"
