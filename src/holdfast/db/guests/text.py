"""A statement whose parameters are all text[], for asyncpg.

asyncpg encodes parameters and decodes answers by codecs that belong to the connection, and its user may set one for every
scalar type, text included. text[] is the exception: it cannot be set, and it needs no look into the catalogue.
"""

import functools
import re
from types import NoneType
from typing import Any
from uuid import UUID

from ...store.statement import Statement

_PARAMETER = re.compile(r"\$(\d+)")
_SCALARS = {
    str: "pg_catalog.text",
    int: "bigint",
    float: "pg_catalog.float8",
    UUID: "pg_catalog.uuid",
    NoneType: "pg_catalog.text",
}

Texts = list[str | None]


def as_text(statement: Statement[Any]) -> tuple[str, tuple[Texts, ...]]:
    """The statement's text and parameters: lists as they are, each scalar as a list of one."""
    kinds = tuple(None if isinstance(p, list) else _SCALARS[type(p)] for p in statement.params)
    params = tuple(_texts(p if isinstance(p, list) else [p]) for p in statement.params)
    return _rewritten(statement.text, kinds), params


def _texts(values: list[Any]) -> Texts:
    return [None if value is None else str(value) for value in values]


@functools.lru_cache(maxsize=1024)
def _rewritten(text: str, kinds: tuple[str | None, ...]) -> str:
    def cast(found: re.Match[str]) -> str:
        kind = kinds[int(found[1]) - 1]
        array = f"{found[0]}::pg_catalog.text[]"
        return array if kind is None else f"({array})[1]::{kind}"

    return _PARAMETER.sub(cast, text)
