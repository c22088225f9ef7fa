"""Bytes to a JSON value, strictly, so that the stored value is the sent one, and every reader reads the same."""

import json
from typing import Any, NoReturn

from ..errors import InvalidMessage
from .shown import shown


def media_type(header: str) -> str:
    """`application/json; charset=utf-8` -> `application/json`."""
    return header.partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def parse_json(body: bytes) -> Any:
    """InvalidMessage: no UTF-8, no JSON, NaN, a key that is there twice, nested too deep."""
    try:
        return _DECODER.decode(body.decode("utf-8"))
    except InvalidMessage:
        raise
    except RecursionError:
        raise InvalidMessage("the body is nested too deep") from None
    except ValueError as error:
        raise InvalidMessage(f"the body is not JSON in UTF-8: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise InvalidMessage(f"the key {shown(_twice(pairs))} is there twice")
    return made


def _twice(pairs: list[tuple[str, Any]]) -> str:
    """The first repeated key. The sender decides how many there are: each is compared once."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("no key is there twice")


def _constant(text: str) -> NoReturn:
    raise InvalidMessage(f"the body has {text} in it, which JSON does not have")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_constant=_constant,
    parse_float=lambda text: float(text) + 0.0,  # -0.0, whose sign the database does not keep
)
