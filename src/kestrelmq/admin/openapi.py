"""The OpenAPI 3.1 document, made from the table of operations."""

import inspect
import json
from functools import cache
from typing import Any, Final

from pydantic import BaseModel

from kestrelmq.admin.calls import LINES, ApiOperation, json_schema
from kestrelmq.admin.models import ErrorAnswer
from kestrelmq.admin.operations import OPERATIONS, PREFIX
from kestrelmq.names import MAX_NAME_BYTES
from kestrelmq.version import VERSION

_DESCRIPTION: Final = (
    "Look at the queues of a kestrelmq server and change them. Times are milliseconds since the "
    "epoch, sizes are bytes. Requests that change anything must not come from a page of another "
    "origin, and need a token where `admin_tokens` are configured."
)
_IN_PATH: Final[dict[str, dict[str, Any]]] = {
    "name": {
        "name": "name",
        "in": "path",
        "required": True,
        "description": "The queue's name.",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES},
    },
    "id": {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "The client's number.",
        "schema": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
    },
}

_TEXT: Final[dict[str, Any]] = {"schema": {"type": "string"}}


@cache
def encoded_document() -> bytes:
    """Return the OpenAPI document as JSON."""
    return json.dumps(document()).encode()


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        place = paths.setdefault(PREFIX + operation.path, {})
        place[operation.method.lower()] = _operation(operation, schemas)
    paths[PREFIX + "/events"] = {"get": _events()}
    paths[PREFIX + "/openapi.json"] = {"get": _self()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "kestrelmq", "version": VERSION, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: ApiOperation, schemas: dict[str, Any]) -> dict[str, Any]:
    text = inspect.getdoc(operation.serve) or ""
    summary, _, description = text.partition("\n\n")
    described: dict[str, Any] = {
        "operationId": operation.serve.__name__,
        "summary": summary,
        "tags": [operation.tag],
        "responses": _responses(operation, schemas),
    }
    if description:
        described["description"] = description
    parameters = [one for name, one in _IN_PATH.items() if f"{{{name}}}" in operation.path]
    if operation.query is not None:
        parameters = [*parameters, *_query(operation.query)]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(operation.body, schemas)}
    if operation.takes_lines:
        described["requestBody"] = {"required": True, "content": {LINES: _TEXT}}
    if operation.changes or operation.secret:
        described["security"] = [{}, {"token": []}]
    return described


def _responses(operation: ApiOperation, schemas: dict[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in operation.statuses:
        responses[str(status)] = {"description": "Done."}
        if operation.answer is not None:
            responses[str(status)]["content"] = _json(operation.answer, schemas)
        if operation.sends_lines:
            responses[str(status)]["content"] = {LINES: _TEXT}
    failures = {400, 401, 403, 429, *operation.failures}
    if operation.body is not None:
        failures |= {408, 413, 415, 503}
    for status in sorted(failures):
        responses[str(status)] = {
            "description": "Refused; the body says why.",
            "content": _json(ErrorAnswer, schemas),
        }
    return responses


def _json(model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, Any]:
    if model.__name__ not in schemas:
        schema = json_schema(model)
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}


def _query(model: type[BaseModel]) -> list[dict[str, Any]]:
    parameters = []
    for name, schema in json_schema(model)["properties"].items():
        # A query parameter cannot be null; the client leaves it out instead.
        options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
        description = schema.pop("description", "")
        if len(options) == 1:
            schema = options[0]  # noqa: PLW2901 # the one that can be said
        schema.pop("title", None)
        parameters.append(
            {"name": name, "in": "query", "description": description, "schema": schema}
        )
    return parameters


def _events() -> dict[str, Any]:
    return {
        "operationId": "events",
        "summary": "Follow the queues, as server-sent events.",
        "tags": ["server"],
        "description": (
            "`rows`: queues that changed, each as name, items, bytes, put rate, get rate, when "
            "the oldest item was added, open reads, waiters, state and what is paused. `reset`: "
            "forget all queues; `rows` with all of them follow. `gone`: names of queues that were "
            "removed. `server`: the totals, once a second. The stream does not end by itself."
        ),
        "responses": {
            "200": {"description": "A stream.", "content": {"text/event-stream": {}}},
            "503": {"description": "There are too many watchers already."},
        },
    }


def _self() -> dict[str, Any]:
    return {
        "operationId": "openapi",
        "summary": "This document.",
        "tags": ["server"],
        "responses": {"200": {"description": "The document.", "content": {"application/json": {}}}},
    }
