"""Options that belong together: a command takes them as one dataclass, the command line shows each of them."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every parameter that is a dataclass of options spread out into its fields."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: p.annotation
        for name, p in signature.parameters.items()
        if dataclasses.is_dataclass(p.annotation)
    }

    def spread_out(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        command(**given)

    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        parameters += _fields(groups[name]) if name in groups else [_by_name(parameter)]
    spread_out.__name__, spread_out.__doc__ = command.__name__, command.__doc__
    spread_out.__annotations__ = {p.name: p.annotation for p in parameters}
    spread_out.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return spread_out


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
        for field in dataclasses.fields(group)
    ]


def _by_name(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
