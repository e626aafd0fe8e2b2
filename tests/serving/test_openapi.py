"""Requests generated from the OpenAPI document, valid and not: none may end in a server error."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, checks

from polytask import Finished, Predictor
from polytask.serving.app import make_app
from polytask.serving.service import Service

CASES = 15
"""Per endpoint."""


@pytest.fixture(scope="module")
def service(tiny_run: Finished) -> Iterator[Service]:
    service = Service(Predictor.load(tiny_run.folder, device="cpu"))
    service.warm_up()
    yield service
    service.close()


@pytest.fixture
def document(service: Service) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_asgi("/openapi.json", make_app(service))


schema = schemathesis.pytest.from_fixture("document")


@schema.parametrize()
@settings(max_examples=CASES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_no_request_ends_in_a_server_error(case: Case) -> None:
    response = case.call()
    case.validate_response(
        response,
        checks=[checks.not_a_server_error, checks.content_type_conformance, checks.response_schema_conformance],
    )
    if response.status_code >= 400:
        assert {"error", "error_type"} <= set(response.json())
