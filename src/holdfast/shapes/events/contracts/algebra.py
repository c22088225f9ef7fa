"""Whether a reader accepts everything that a writer writes, decided by the algebra of jsonschema-rs.

Its `yes` is a proof. If it cannot decide, the result is `unknown`, which counts as no. It knows a format such as date-time
by name alone: text of one format fits a reader of the same format, or of none.
"""

import re
from types import ModuleType
from typing import Any, Literal

from ....distribution import install
from ....errors import ConfigurationError
from .rules import RULES
from .schemas import Schema, essence, mapped

Answer = Literal["yes", "no", "unknown"]
_FORMATS = ("format", "contentEncoding", "contentMediaType")


def covers(reader: Schema, writer: Schema) -> Answer:
    """ConfigurationError when the library is not installed."""
    library = _library()
    try:
        found = library.canonicalize(plain(reader)).covers(library.canonicalize(plain(writer)))
    except Exception:  # noqa: BLE001 a schema that it cannot read is undecided
        return "unknown"
    word = str(found)
    return word if word in ("yes", "no") else "unknown"  # type: ignore[return-value]


def _library() -> ModuleType:
    try:
        import jsonschema_rs
    except ImportError as error:
        raise ConfigurationError(
            f"to compare contracts, jsonschema-rs is needed, which cannot be imported ({error}). "
            f"Install it: {install('contracts')}"
        ) from None
    return jsonschema_rs


def plain(schema: Schema) -> Any:
    """Without descriptions, and with each format and each rule as a unique pattern."""
    return mapped(essence(schema), _by_pattern)


def _by_pattern(part: Schema) -> Schema:
    names = [f"{key} {part[key]}" for key in _FORMATS if key in part]
    names += [f"rule {rule}" for rule in part.get(RULES, ())]
    if not names:
        return part
    rest = {key: value for key, value in part.items() if key not in (*_FORMATS, RULES)}
    marks = [{"pattern": re.escape(f"<{name}>")} for name in names]  # no ^: text may have several
    if "pattern" not in rest and len(marks) == 1:
        return {**rest, **marks[0]}
    return {**rest, "allOf": [*rest.get("allOf", ()), *marks]}
