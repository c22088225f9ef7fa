"""`typing.TypedDict` below Python 3.12, which pydantic leaves to `typing_extensions`: pydantic reads a twin in its place."""

import dataclasses
import types
from collections.abc import Iterator
from typing import Any, NotRequired, Required, get_args, get_origin, get_type_hints, is_typeddict

_HOOK = "__get_pydantic_core_schema__"


def adopt(annotation: Any) -> bool:
    """Let pydantic read the typed dicts that the annotation leads to. False: there is none that it could not read."""
    found = [
        one for one in _reached(annotation) if type(one).__module__ == "typing" and _HOOK not in vars(one)
    ]
    for one in found:
        setattr(one, _HOOK, staticmethod(_schema_of(_twin(one))))
    return bool(found)


def _schema_of(twin: Any) -> Any:
    return lambda _, handler: handler.generate_schema(twin)


def _twin(one: Any) -> Any:
    """The same keys, in a class that pydantic takes."""
    from typing_extensions import TypedDict

    fields = {
        name: hint
        if get_origin(hint) in (Required, NotRequired)
        else (Required if name in one.__required_keys__ else NotRequired)[hint]
        for name, hint in get_type_hints(one, include_extras=True).items()
    }
    make: Any = TypedDict
    twin = make(one.__name__, fields)
    twin.__module__, twin.__qualname__, twin.__doc__ = one.__module__, one.__qualname__, one.__doc__
    if config := vars(one).get("__pydantic_config__"):
        twin.__pydantic_config__ = config
    return twin


def _reached(annotation: Any) -> Iterator[Any]:
    """Typed dicts in an annotation, and in the fields of those and of dataclasses. Generic ones are not among them:
    their parameters cannot be resolved."""
    waiting, seen = [annotation], set[int]()
    while waiting:
        top = waiting.pop()
        if id(top) in seen:
            continue
        seen.add(id(top))
        waiting += get_args(top)
        if isinstance(top, type) and not isinstance(top, types.GenericAlias):
            typed = is_typeddict(top) and not getattr(top, "__parameters__", ())
            if typed or dataclasses.is_dataclass(top):
                waiting += get_type_hints(top, include_extras=True).values()
            if typed:
                yield top
