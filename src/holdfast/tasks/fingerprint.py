"""A fingerprint of the payloads that a handler accepts: names, which are required, types down to their fields, and upgrades.

Equal signatures have equal fingerprints in every process. Two that accept the same payloads may have different ones: that
costs a job one more try and nothing else. Code inside a validator is not compared, nor what an upgrade calls in other
modules or reads from variables.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from .convert import Converter, type_name
from .signature import HandlerSignature

_WORDS = ("title", "description", "default", "examples")  # they do not restrict payloads
_PLAIN = (str, bytes, bool, int, float, complex, type(None), type(...))


def fingerprint(
    signature: HandlerSignature,
    converters: Mapping[str, Converter],
    upgrade: Mapping[int, Callable[..., Any]],
) -> str:
    takes = [
        [name, p.default is p.empty, type_name(signature.hint(name)), _fields(converters[name])]
        for name, p in sorted(signature.params.items())
    ]
    steps = [[version, _code(step, set())] for version, step in sorted(upgrade.items())]
    text = json.dumps([takes, steps], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _fields(converter: Converter) -> Any:
    """The parts of a type whose name does not determine it."""
    schema = getattr(converter, "schema", None)
    return None if schema is None else _essence(schema())


def _essence(schema: Any, named: bool = False) -> Any:
    """Without descriptions. `named`: the keys are names of fields, whatever they are."""
    if isinstance(schema, list):
        return [_essence(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _essence(part, named=not named and key in ("properties", "$defs"))
        for key, part in schema.items()
        if named or key not in _WORDS
    }


def code_of(step: Callable[..., Any]) -> object:
    """A callable's behaviour, as far as its code shows it, as a value that is the same in every process."""
    return _code(step, set())


def _code(step: Any, seen: set[int]) -> object:
    """A callable's behaviour, as far as its code shows it: with the functions inside it, those of its module that it names,
    and its bound arguments. No address, path, line or order of a set is in it. `seen`: code that was visited
    already."""
    if isinstance(step, functools.partial):
        given = [_value(value, seen) for value in step.args]
        return ["partial", _code(step.func, seen), given, _named(step.keywords, seen)]
    func: Any = step if hasattr(step, "__code__") else getattr(type(step), "__call__", None)  # noqa: B004
    code = getattr(func, "__code__", None)
    if not isinstance(code, CodeType):
        return [getattr(step, "__qualname__", type(step).__qualname__)]
    if id(code) in seen:
        return ["again"]
    seen.add(id(code))
    defaults = [_value(func.__defaults__, seen), _named(func.__kwdefaults__ or {}, seen)]
    helpers = {
        name: found
        for name in _names(code)
        if isinstance(found := func.__globals__.get(name), FunctionType)
        and found.__module__ == func.__module__
    }
    return [_value(code, seen), defaults, _closed_over(func, seen), _named(helpers, seen)]


def _closed_over(func: Any, seen: set[int]) -> list[object]:
    found = []
    for cell in func.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is still empty
            found.append(_value(cell.cell_contents, seen))
    return found


def _names(code: CodeType) -> set[str]:
    inner = (_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)


def _named(values: Mapping[str, object], seen: set[int]) -> list[object]:
    return [[name, _value(value, seen)] for name, value in sorted(values.items())]


def _value(value: object, seen: set[int]) -> object:
    """As text that is the same in every process. Of objects that may change while a process runs, only the kind."""
    if isinstance(value, CodeType):
        parts = [_value(const, seen) for const in value.co_consts]
        return [value.co_code.hex(), list(value.co_names), parts, value.co_exceptiontable.hex()]
    if isinstance(value, tuple):
        return ["tuple", *(_value(part, seen) for part in value)]
    if isinstance(value, frozenset):
        return ["set", *sorted(json.dumps(_value(part, seen)) for part in value)]
    if isinstance(value, FunctionType | MethodType | functools.partial):
        return _code(value, seen)
    return [type(value).__qualname__, repr(value) if type(value) in _PLAIN else ""]
