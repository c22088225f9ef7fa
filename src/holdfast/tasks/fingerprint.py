"""A fingerprint of the payloads that a handler takes: names, which are required, types down to their fields, and upgrades.

Equal signatures have equal fingerprints in every process. Two that take the same payloads may have different ones: that
costs a job one more try and nothing else. What a validator does inside is not seen.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from .convert import Converter, type_name
from .signature import HandlerSignature

_WORDS = ("title", "description", "default", "examples")  # say nothing of what fits


def fingerprint(
    signature: HandlerSignature,
    converters: Mapping[str, Converter],
    upgrade: Mapping[int, Callable[..., Any]],
) -> str:
    takes = [
        [name, p.default is p.empty, type_name(signature.hint(name)), _fields(converters[name])]
        for name, p in sorted(signature.params.items())
    ]
    steps = [[version, _code(step)] for version, step in sorted(upgrade.items())]
    text = json.dumps([takes, steps], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _fields(converter: Converter) -> Any:
    """What the type is made of, where its name does not say it all."""
    schema = getattr(converter, "schema", None)
    return None if schema is None else _essence(schema())


def _essence(schema: Any, named: bool = False) -> Any:
    """Without the words for people. `named`: the keys are names of fields, whatever they are called."""
    if isinstance(schema, list):
        return [_essence(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _essence(part, named=not named and key in ("properties", "$defs"))
        for key, part in schema.items()
        if named or key not in _WORDS
    }


def _code(step: Callable[..., Any]) -> list[object]:
    code = getattr(step, "__code__", None)
    if code is None:
        return [getattr(step, "__qualname__", type(step).__qualname__)]
    plain = [c for c in code.co_consts if isinstance(c, str | int | float | None)]
    return [code.co_code.hex(), list(code.co_names), plain]
