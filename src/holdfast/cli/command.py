"""What every command does alike: take options, open the database when it is needed, print for a person or as JSON.

A parameter that is a dataclass of options is spread out: the command line shows each of its fields. `operator: Operator`
stands for --database-url, --app and --json, except for those that the command names itself, or takes as `where: Where`.
An option `reason` of any command goes into the audit with what the command does.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar, get_type_hints, overload

import typer

from holdfast.cli import render
from holdfast.cli.apps import Where, operator_at
from holdfast.cli.busy import busy
from holdfast.cli.exits import DONE
from holdfast.cli.ids import whole_ids
from holdfast.operate.operator import Operator

T = TypeVar("T")
ReasonOption = Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the audit.")]
Run = Callable[..., "Shown[Any]"]


@dataclasses.dataclass(frozen=True)
class Shown(Generic[T]):
    """The result of a command, and how to print it."""

    value: T
    show: Callable[[T], None]  # to a person
    json: Any = None  # for programs; None: the value
    code: int = DONE
    error: str | None = None  # for stderr, at the end


@overload
def command(run: Run) -> Callable[..., None]: ...
@overload
def command(
    *, checked: bool = ..., asks_why: bool = ..., makes: bool = ..., looks: bool | str = ...
) -> Callable[[Run], Callable[..., None]]: ...
def command(
    run: Run | None = None,
    *,
    checked: bool = True,
    asks_why: bool = False,
    makes: bool = False,
    looks: bool | str = False,
) -> Any:
    """The command that runs this with an operator and shows what it returns. Not `checked`: also on another schema.
    `asks_why`: it has an option --reason, for the audit. `makes`: an embedded server that is not there yet is made. `looks`:
    it changes nothing, and works where the app does not load; a word names the option with which it acts."""
    how = functools.partial(_command, checked, asks_why, makes, looks)
    return how if run is None else how(run)


def _command(checked: bool, asks_why: bool, makes: bool, looks: bool | str, run: Run) -> Callable[..., None]:
    signature = inspect.signature(run, eval_str=True)
    groups = _groups(signature)
    own = set(signature.parameters)
    named = own | ({field.name for field in dataclasses.fields(Where)} if Where in groups.values() else set())

    def called(**given: Any) -> None:
        where = Where(**{field.name: given[field.name] for field in dataclasses.fields(Where)})
        for name, group in groups.items():
            given[name] = group(**{field.name: given[field.name] for field in dataclasses.fields(group)})
        why = given.get("reason") or None
        only_looks = not given[looks] if isinstance(looks, str) else looks
        at = operator_at(where, checked=checked, reason=why, makes=makes, looks=only_looks)
        with at as operator, busy(as_json=where.as_json):
            given = {name: whole_ids(operator, value) for name, value in given.items()}
            given["operator"] = operator
            shown = run(**{name: value for name, value in given.items() if name in own})
        _print(shown, where.as_json)

    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if parameter.annotation is Operator:
            parameters += [field for field in _fields(Where) if field.name not in named]
        else:
            parameters += _fields(groups[name]) if name in groups else [_by_name(parameter)]
    if asks_why:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter("reason", kind, default=None, annotation=ReasonOption))
    called.__name__, called.__doc__ = run.__name__, run.__doc__
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


def _groups(signature: inspect.Signature) -> dict[str, Any]:
    of = {name: p.annotation for name, p in signature.parameters.items()}
    return {name: group for name, group in of.items() if dataclasses.is_dataclass(group)}


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
        for field in dataclasses.fields(group)
    ]


def _by_name(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _print(shown: Shown[Any], as_json: bool) -> None:
    if as_json:
        render.print_json(shown.value if shown.json is None else shown.json)
    else:
        shown.show(shown.value)
    if shown.error is not None:
        typer.echo(f"holdfast: {shown.error}", err=True)
    if shown.code != DONE:
        raise typer.Exit(shown.code)
