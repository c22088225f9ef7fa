"""Formats that senders use besides plain JSON: forms and CloudEvents; and keys from templates."""

import json
import string
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from ...errors import InvalidMessage, TaskDefinitionError
from ...tasks.payload import shown

CLOUDEVENTS = "application/cloudevents+json"
_MOST_FIELDS = 1000


def parse_form(body: bytes) -> dict[str, str]:
    """Fields by name; of a repeated one the last."""
    try:
        text = body.decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict"))
    except ValueError as error:
        raise InvalidMessage(f"the body is no form: {error}") from None


def opened(value: Any) -> tuple[Any, dict[str, str]]:
    """A CloudEvent in structured mode: its data, and its other attributes as headers, as binary mode has them."""
    if not isinstance(value, dict) or "specversion" not in value:
        raise InvalidMessage("the body is no CloudEvent: it has no specversion")
    if "data_base64" in value:
        raise InvalidMessage("the data of the CloudEvent is binary. Send JSON in data")
    attributes = {
        f"ce-{name}".lower(): text if isinstance(text, str) else json.dumps(text)
        for name, text in value.items()
        if name != "data" and text is not None  # null: it is not there
    }
    return value.get("data"), attributes


class KeyTemplate:
    """`order:{order_id}`, or `{data.object.customer}`: fields of the data, by their paths."""

    def __init__(self, template: object, where: str) -> None:
        if not isinstance(template, str) or not template:
            raise TaskDefinitionError(
                f'{where}: key must be a template such as "order:{{order_id}}", not {shown(template)}'
            )
        try:
            parts = list(string.Formatter().parse(template))
        except ValueError as error:
            raise TaskDefinitionError(f"{where}: the key {template!r} cannot be read: {error}") from None
        for _, name, spec, conversion in parts:
            plain = name is None or all(step.isidentifier() for step in name.split("."))
            if spec or conversion or not plain:
                raise TaskDefinitionError(
                    f"{where}: the key {template!r} may only have plain fields such as {{order_id}}"
                )
        self._parts = [(text, name) for text, name, _, _ in parts]
        self._template = template

    def key_of(self, data: Any) -> str:
        """InvalidMessage when the data has no such field."""
        made = "".join(text + ("" if name is None else self._field(data, name)) for text, name in self._parts)
        if len(made.encode("utf-8", "replace")) > 512:
            raise InvalidMessage(f"the key that {self._template!r} makes is longer than 512 bytes")
        return made

    def _field(self, data: Any, name: str) -> str:
        found = data
        for step in name.split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
        if found is None or isinstance(found, dict | list | bool):
            raise InvalidMessage(f"the key {self._template!r} needs {name!r}, which is {shown(found)}")
        return str(found)
