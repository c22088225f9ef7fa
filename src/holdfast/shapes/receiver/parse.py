"""The bytes of a message become a JSON value: strictly, so that what is stored is what was signed."""

import json
import string
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from ...errors import InvalidMessage, TaskDefinitionError
from ...tasks.payload import shown

CLOUDEVENTS = "application/cloudevents+json"
_MOST_FIELDS = 1000


def media_type(header: str) -> str:
    """`application/json; charset=utf-8` -> `application/json`."""
    return header.partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def parse_json(body: bytes) -> Any:
    """InvalidMessage: no UTF-8, no JSON, NaN, a key that is there twice, nested too deep."""
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=lambda text: float(text) + 0.0,  # -0.0, whose sign the database does not keep
        )
    except InvalidMessage:
        raise
    except RecursionError:
        raise InvalidMessage("the body is nested too deep") from None
    except ValueError as error:
        raise InvalidMessage(f"the body is not JSON in UTF-8: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidMessage(f"the key {shown(twice)} is there twice")
    return made


def _constant(text: str) -> NoReturn:
    raise InvalidMessage(f"the body has {text} in it, which JSON does not have")


def parse_form(body: bytes) -> dict[str, str]:
    """Fields by name, the last of those that are there several times."""
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
