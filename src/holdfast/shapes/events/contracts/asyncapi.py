"""The published events and their subscribers, as an AsyncAPI 3.0 document.

A channel for each event type, a message for each version with its envelope (CloudEvents 1.0), and the schema of what is
written. AsyncAPI reads schemas as JSON Schema draft 7, so definitions stand among the components, and what later drafts
write differently is rewritten.
"""

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ..declare import Declared as Subscribed
from .catalog import Declared
from .schemas import Schema, mapped

_REF = "#/components/schemas/"
_ENVELOPE = {
    "type": "object",
    "required": ["specversion", "id", "source", "type", "time", "data"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "format": "uuid", "description": "The same on every delivery."},
        "source": {"type": "string", "format": "uri-reference"},
        "type": {"type": "string"},
        "time": {"type": "string", "format": "date-time"},
        "subject": {"type": "string", "description": "The key: events of one key are delivered in order."},
        "datacontenttype": {"const": "application/json"},
        "dataschema": {"type": "string", "format": "uri"},
    },
}


def document(
    events: Iterable[Declared], subscriptions: Sequence[Subscribed], *, title: str, version: str
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": version},
        "defaultContentType": "application/json",
        "channels": {},
        "operations": {},
        "components": {"messages": {}, "schemas": {"envelope": _ENVELOPE}},
    }
    for item in events:
        _add(made, item)
    for subscription in subscriptions:
        _subscribe(made, subscription)
    return made


def _id(*parts: object) -> str:
    """Usable as a key of components."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", ".".join(map(str, parts)))


def _add(made: dict[str, Any], item: Declared) -> None:
    kind, own = item.kind, item.contract
    name, message = _id(own.name), _id(own.name, f"v{own.version}")
    channel = made["channels"].setdefault(name, {"address": own.name, "messages": {}})
    channel["messages"][f"v{own.version}"] = {"$ref": f"#/components/messages/{message}"}
    schemas = made["components"]["schemas"]
    for inner, schema in own.writer.get("$defs", {}).items():
        schemas[_id(message, inner)] = _draft_7(schema, message)
    schemas[message] = _draft_7({k: v for k, v in own.writer.items() if k != "$defs"}, message)
    only = {
        "type": {"const": own.name},
        "dataschema": {"const": f"urn:holdfast:{own.name}:{own.version}"},
        "data": {"$ref": _REF + message},
    }
    made["components"]["messages"][message] = {
        "name": own.name,
        "title": f"{own.name} version {own.version}",
        "contentType": "application/cloudevents+json",
        "payload": {"allOf": [{"$ref": f"{_REF}envelope"}, {"type": "object", "properties": only}]},
        **({} if (text := _first_line(kind.cls)) is None else {"summary": text}),
    }
    operation = made["operations"].setdefault(
        f"publish.{name}",
        {"action": "send", "channel": {"$ref": f"#/channels/{name}"}, "messages": []},
    )
    operation["messages"].append({"$ref": f"#/channels/{name}/messages/v{own.version}"})


def _first_line(cls: type) -> str | None:
    text = (cls.__dict__.get("__doc__") or "").strip().split("\n", 1)[0]
    return (
        None if not text or text.startswith(f"{cls.__name__}(") else text
    )  # a dataclass makes one by itself


def _subscribe(made: dict[str, Any], subscription: Subscribed) -> None:
    for name, channel in made["channels"].items():
        if any(fnmatch.fnmatchcase(channel["address"], pattern) for pattern in subscription.patterns):
            made["operations"][f"{_id(subscription.name)}.{name}"] = {
                "action": "receive",
                "channel": {"$ref": f"#/channels/{name}"},
                "summary": f"{'Projection' if subscription.apply is not None else 'Consumer'} {subscription.name}",
                "messages": [{"$ref": f"#/channels/{name}/messages/{v}"} for v in channel["messages"]],
            }


def _draft_7(schema: Schema, message: str) -> Schema:
    def rewrite(part: Schema) -> Schema:
        part = {key: value for key, value in part.items() if key != "discriminator"}
        if "$ref" in part:
            part["$ref"] = _REF + _id(message, part["$ref"].rpartition("/")[2])
        if "prefixItems" in part:
            if "items" in part:
                part["additionalItems"] = part["items"]
            part["items"] = part.pop("prefixItems")
        return part

    made: Schema = mapped(schema, rewrite)
    return made
