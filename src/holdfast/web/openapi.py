"""The description of the JSON API, made from the pages and acts themselves: OpenAPI 3.1."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.pages import Act, Field, Page
from holdfast.web.drawing import slug
from holdfast.web.naming import address_of, names_of

if TYPE_CHECKING:
    from holdfast.web.site import Site

_PROBLEM = {
    "description": "Why not",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_REFUSED = dict.fromkeys(
    ("400", "401", "403", "404", "409", "405", "413", "421", "422", "429", "500", "503"), _PROBLEM
)


def describe_api(site: "Site", prefix: str) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for page in site.pages.values():
        for name in names_of(page):
            paths[f"/api/v1/{name or 'overview'}"] = {"get": _page(page, name or "overview")}
    paths["/api/v1/operations"]["post"] = _by_name(site)
    for act in site.acts.values():
        paths[f"/api/v1/acts/{slug(act.name)}"] = {"post": _act(act)}
        if (also := address_of(act.name)) is not None:
            paths.setdefault(f"/api/v1/{also}", {})["post"] = _act(act, also)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": site.release,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": prefix or "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": _PROBLEM_SCHEMA, "Page": _PAGE_SCHEMA, "Done": _DONE_SCHEMA},
        },
    }


def _page(page: Page, path: str) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)\}", page.path)
    choices = {one.name: one.choices for one in page.filters}
    parameters = _in_path(names)
    parameters += [
        {"name": n, "in": "query", "required": False, "schema": _query(choices.get(n, ()))}
        for n in page.names()
    ]
    ok = {
        "description": page.title,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Page"}}},
    }
    return {
        "summary": page.about or page.title,
        "operationId": f"get_{re.sub('[^a-z]+', '_', path).strip('_')}",
        "parameters": parameters,
        "responses": {
            "200": ok,
            "304": {"description": "If-None-Match names the current version"},
            **_REFUSED,
        },
    }


def _in_path(names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"name": n, "in": "path", "required": True, "schema": _query()} for n in names]


def _query(choices: Sequence[str] = ()) -> dict[str, Any]:
    return {"type": "string", "enum": ["", *choices]} if choices else {"type": "string"}


def _act(act: Act, also: str = "") -> dict[str, Any]:
    """`also`: another address of it, which may name what it is about."""
    named = re.findall(r"\{(\w+)\}", also)
    fields = {field.name: _field(field) for field in act.fields if field.name not in named}
    needed = [f.name for f in act.fields if f.required and not f.value and f.name not in named]
    body: dict[str, Any] = {"type": "object", "properties": fields, "additionalProperties": False}
    if needed:
        body["required"] = needed
    ok = {
        "description": "Done",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Done"}}},
    }
    dry = {
        "name": "dry_run",
        "in": "query",
        "required": False,
        "schema": {"type": "string", "enum": ["1", "0"]},
    }
    return {
        "summary": f"{act.label}: holdfast {act.name}. Needs the role {act.role}.",
        "operationId": f"{'post' if also else 'act'}_{re.sub('[^a-z]+', '_', act.name)}",
        "parameters": [*_in_path(named), dry, _KEY],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": ok, **_REFUSED},
    }


def _by_name(site: "Site") -> dict[str, Any]:
    """Any act, by its name and what it is about."""
    fields = {
        "verb": {"enum": sorted(site.acts)},
        "selection": {"type": "object"},
        "reason": _PLAIN,
    }
    body = {"type": "object", "properties": fields, "required": ["verb"], "additionalProperties": False}
    made = _act(next(iter(site.acts.values())))
    return {
        **made,
        "summary": "Any act, with the fields of its own address as the selection.",
        "operationId": "operate",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
    }


_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "For a day, the same request under the same key is answered as the first time and does nothing.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}

# A program may use the types of JSON. None is an omitted value.
_SOME: dict[str, dict[str, Any]] = {
    "ids": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]},
    "all": {"type": ["boolean", "string", "integer", "null"]},
}
_PLAIN = {"type": ["string", "number", "null"]}


def _field(field: Field) -> dict[str, Any]:
    if field.kind == "choice":
        return {"enum": [*field.choices, *([] if field.required and not field.value else [None, ""])]}
    return {} if field.kind == "json" else _SOME.get(field.name, _PLAIN)


def takes(field: Field, value: object) -> bool:
    """Whether a value has the described form. Its meaning is checked by the act."""
    if field.kind == "json" or value is None:
        return True
    if field.name == "ids" and isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    if isinstance(value, bool):
        return field.name == "all"
    if isinstance(value, int | float):
        return field.kind != "choice" and field.name != "ids"
    return isinstance(value, str)


_PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "reason"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "reason": {"type": "string"},
        "id": {"type": ["string", "null"]},
    },
}
_PAGE_SCHEMA = {
    "type": "object",
    "properties": {
        "data": {"description": "The data of the page. Counts are {count, capped}, times RFC 3339."},
        "next": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
        "cut": {"type": "boolean"},
        "in_use": {"type": "boolean"},
        "about": {"type": "string"},
    },
}
_DONE_SCHEMA = {
    "type": "object",
    "required": ["act", "dry_run"],
    "properties": {
        "act": {"type": "string"},
        "dry_run": {"type": "boolean"},
        "sentence": {"type": "string"},
        "done": {},
        "preview": {},
    },
}
