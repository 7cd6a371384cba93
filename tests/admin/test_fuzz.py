"""The API fed from its own document: whatever is sent, the server answers as it says it does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from kestrelmq.admin import openapi
from kestrelmq.admin.calls import LINES
from tests.admin.conftest import Admin
from tests.support.examples import examples
from tests.support.server import running_server

document = openapi.document()
# A stream has no end, and the document has no parameters.
del document["paths"]["/api/v1/events"]
LONGEST_URL = 8000
schema = schemathesis.openapi.from_dict(document)


@schemathesis.serializer(LINES)
def lines(_context: Any, value: Any) -> bytes:
    """Send any text as lines of JSON; most are none."""
    return str(value).encode(errors="replace")


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    """One server for all requests: it must survive them all."""
    directory: Path = tmp_path_factory.mktemp("fuzzed")
    with running_server(directory) as server:
        admin = Admin(server)
        with admin.client() as client:
            client.put_many("work", [b"an item"] * 5)
        yield admin
        assert server.process.poll() is None


@schema.parametrize()
@settings(
    max_examples=examples(10),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_makes_the_server_fail(case: Any, fuzzed: Admin) -> None:
    """Replies have a documented status, type and shape, and are never an internal error."""
    if len(case.path_parameters.get("name", "")) % 2:
        case.path_parameters["name"] = "work"  # one that is there
    if isinstance(case.body, dict) and "timeout" in case.body:
        case.body["timeout"] = 0  # nobody adds the items that it would wait for
    response = case.call(base_url=fuzzed.url)
    assert response.status_code != 500
    if len(response.request.url or "") > LONGEST_URL:
        assert response.status_code == 400  # it never was a request to the API
        return
    case.validate_response(
        response,
        checks=[
            schemathesis.checks.response_schema_conformance,
            schemathesis.checks.status_code_conformance,
            schemathesis.checks.content_type_conformance,
        ],
    )
