"""A signal on the dashboard: its form has a field for each part of its payload, from the type that the code declares."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import ConfigurationError
from ...operate.procedure import Procedure
from ...pages import Act, ActResult, Field, Given, Preview
from ...tasks.taskset import TaskSet
from . import bars, verbs
from .messages import Signal
from .runs import RunView
from .sending import check_signal, declared_signals
from .states import ENDED

_RUN, _NAME = Field("run"), Field("signal", "Signal", shown=True)
_PAYLOAD = Field("payload", "Payload, as JSON", "json", required=False, shown=True)
_PLAIN = (_RUN, _NAME, _PAYLOAD)
_PART = "payload."  # before the name of a part of a payload that is an object
_WHOLE = "value"  # a payload that is none
_SCALARS: Mapping[str, Any] = {"string": "text", "integer": "number", "number": "number", "boolean": "choice"}
_YES_OR_NO = ("true", "false")


def signal_act(tasks: TaskSet) -> Act:
    def form(given: Given) -> Procedure[Sequence[Field]]:
        return (yield from _form(tasks, given))

    def preview(given: Given) -> Procedure[Preview]:
        return (yield from _preview(tasks, given))

    def send(given: Given) -> Procedure[ActResult]:
        found, payload = yield from _checked(tasks, given)
        act = yield from verbs.signal(given["run"], given["signal"], payload)
        said = f"Run {found.id} of {found.workflow} got the signal {given['signal']}."
        return ActResult(said, {"changed": act.changed}, f"workflows/{found.run_id}")

    return Act("workflow signal", "Signal", send, _PLAIN, _words, preview, form=form)


def _form(tasks: TaskSet, given: Given) -> Procedure[Sequence[Field]]:
    """Which signal, those first that the run waits for; then the parts of its payload."""
    if not given.get("run") or "payload" in given:
        return _PLAIN
    found = yield from verbs.get(given["run"])
    declared = declared_signals(tasks, found.workflow)
    if not declared:
        return _PLAIN
    if not given.get("signal"):
        waits = [name for name in found.waits or () if name in declared]
        names = [*waits, *(name for name in sorted(declared) if name not in waits)]
        return (_RUN, Field("signal", "Signal", "choice", names, shown=True))
    signal = declared.get(given["signal"])
    chosen = Field("signal", "Signal", "choice", (given["signal"],), shown=True)
    return (_RUN, chosen, *(parts_of(signal) if signal is not None else (_PAYLOAD,)))


def _preview(tasks: TaskSet, given: Given) -> Procedure[Preview]:
    found, _ = yield from _checked(tasks, given)
    name, waits = given["signal"], found.waits or []
    if found.state in ENDED:
        raise ConfigurationError(f"run {found.id} of {found.workflow} is {found.state}: no signal reaches it")
    said = f"Run {found.id} of {found.workflow} would get the signal {name}"
    if name in waits:
        return Preview(f"{said}, which it waits for.")
    warnings = [f"It does not wait for {name} now: it finds the signal when it asks for it."]
    if waits:
        warnings.append(f"It waits for {bars.waits_for(found)}.")
    if tasks.known() and name not in declared_signals(tasks, found.workflow):
        warnings.append(f"No signal {name} is declared in the code of {found.workflow}.")
    return Preview(f"{said}.", warnings=warnings)


def _checked(tasks: TaskSet, given: Given) -> Procedure[tuple[RunView, Any]]:
    """The run, and the payload, which fits the code if that is at hand."""
    found = yield from verbs.get(given["run"])
    payload = _payload(given, declared_signals(tasks, found.workflow).get(given["signal"]))
    check_signal(tasks, found.workflow, given["signal"], payload)
    return found, payload


def _words(given: Given) -> list[str]:
    """Without what was typed into the parts, which are JSON on the command line."""
    payload = given.get("payload") or (
        "JSON" if any(name.startswith(_PART) or name == _WHOLE for name in given) else "null"
    )
    reason = ["--reason", given["reason"]] if given.get("reason") else []
    return ["workflow", "signal", given["run"], given.get("signal", "NAME"), payload, *reason]


# From the type to fields, and from their texts to the payload ----------------------------------------------------------


def parts_of(signal: Signal[Any]) -> list[Field]:
    """A field for each part; one of JSON where the type has no schema."""
    schema = _schema(signal)
    if schema is None:
        return [_PAYLOAD]
    if schema.get("type") == "object" and schema.get("properties"):
        required = schema.get("required", ())
        return [_field(_PART + name, name, part, name in required) for name, part in _properties(schema)]
    return [] if schema.get("type") == "null" else [_field(_WHOLE, "Payload", schema, required=True)]


def _schema(signal: Signal[Any]) -> dict[str, Any] | None:
    scalar = {
        str: "string",
        int: "integer",
        float: "number",
        bool: "boolean",
        type(None): "null",
        None: "null",
    }
    if signal._payload in scalar:
        return {"type": scalar[signal._payload]}
    made = getattr(signal._types(), "schema", None)
    found = made() if made is not None else None
    return None if found is None else _resolved(found, found.get("$defs", {}))


def _resolved(schema: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Without references, one level deep; of a value that may be null the value's own."""
    found = dict(schema)
    for _ in range(5):
        others = [one for one in found.get("anyOf", ()) if one.get("type") != "null"]
        if "$ref" in found:
            meant = known.get(str(found.pop("$ref")).rpartition("/")[2], {})
        elif len(others) == 1:
            meant = {**others[0], "nullable": len(found.pop("anyOf")) > 1}
        else:
            break
        found = {**meant, **found}
    return {**found, "$defs": known}


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, part in schema["properties"].items():
        yield name, _resolved(part, schema.get("$defs", {}))


def _kind(schema: Mapping[str, Any]) -> str:
    """text, number, choice or json."""
    if "enum" in schema:
        return "choice" if all(isinstance(one, str) for one in schema["enum"]) else "json"
    return str(_SCALARS.get(str(schema.get("type")), "json"))


def _takes_empty(schema: Mapping[str, Any]) -> bool:
    """A plain text, which may have no characters."""
    return (
        _kind(schema) == "text"
        and not schema.get("nullable")
        and not schema.keys() & {"format", "pattern", "minLength"}
    )


def _field(name: str, label: str, schema: Mapping[str, Any], required: bool) -> Field:
    kind: Any = _kind(schema)
    may_be_empty = required and _takes_empty(schema)
    needed = required and not schema.get("nullable") and not may_be_empty
    choices = list(schema.get("enum", _YES_OR_NO)) if kind == "choice" else []
    default = schema.get("default")
    value = (
        ""
        if default is None
        else default
        if isinstance(default, str) and kind != "json"
        else json.dumps(default)
    )
    words = [
        schema.get("description"),
        schema.get("format"),
        None if needed else "may be empty" if may_be_empty else "may be left out",
    ]
    hint = ", ".join(str(word) for word in words if word)[:200]
    return Field(
        name,
        label,
        kind,
        choices if needed or not choices else ["", *choices],
        needed,
        value,
        hint,
        shown=True,
    )


def _payload(given: Given, signal: Signal[Any] | None) -> Any:
    if signal is None or "payload" in given:
        return _json(given.get("payload") or "null", "the payload")
    schema = _schema(signal)
    if schema is None or schema.get("type") == "null":
        return None
    if schema.get("type") != "object" or not schema.get("properties"):
        text = given.get(_WHOLE, "")
        return None if text == "" and schema.get("nullable") else _value(text, schema, "the payload")
    found = {}
    for name, part in _properties(schema):
        text = given.get(_PART + name, "")
        if text != "":
            found[name] = _value(text, part, name)
        elif part.get("nullable"):
            found[name] = None
        elif name in schema.get("required", ()) and _takes_empty(part):
            found[name] = ""
    return found


def _value(text: str, schema: Mapping[str, Any], what: str) -> Any:
    kind = _kind(schema)
    return text if kind == "text" or (kind == "choice" and "enum" in schema) else _json(text, what)


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{what} is not JSON: {error}. A text needs quotes of its own") from None
