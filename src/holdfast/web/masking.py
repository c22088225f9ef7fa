"""The visible part of a value for a role: secrets are for nobody (model/masking.py), content and errors depend on the role.

It is done once, on the server, before a template, a JSON answer or a stream sees the value.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.model import exact
from holdfast.model.masking import MASK, is_secret_name, masked, masked_text
from holdfast.pages import Role

_CONTENT = frozenset((
    "payload", "result", "metadata", "data", "headers", "follow_ups", "shown", "input", "arguments",
    "selection", "options", "request_headers", "response_headers", "response_body",
))  # fmt: skip
_CHANGES = frozenset(("before", "after"))  # old and new values; as text they appear where a list continues
_ERRORS = frozenset((
    "last_error", "error", "message", "trace", "note", "problem", "hold_reason", "cancel_reason", "reason",
    "detail", "disabled_reason", "breaker_error", "fault", "text",
))  # fmt: skip

_WORDS = frozenset(("message", "trace", "reason", "cancel_reason", "text"))  # no class stands before these

_QUOTING = frozenset(("sentence", "what"))


def form_of(value: Any) -> Any:
    """Names and kinds without values: what a viewer sees of a payload."""
    if isinstance(value, Mapping):
        return {str(name): form_of(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        kinds = list(dict.fromkeys(_kind(item) for item in value))
        return f"{len(value)} of {', '.join(kinds)}" if value else "empty list"
    return _kind(value)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "true or false"),
        ((int, float, exact.Number), "number"),
        (str, "text"),
        (Mapping, "object"),
    )
    return next((word for kind, word in kinds if isinstance(value, kind)), "list")


def within_text(text: str, names: Collection[str]) -> str:
    """JSON that is kept as text, as a result is, without what its task masks."""
    if not names or text[:1] not in ("{", "["):
        return text
    try:
        return exact.dumps(masked(exact.loads(text), names=names), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


_AN_ERROR = "an error"


def class_of_error(text: str | None) -> str | None:
    """`ConnectTimeout` of `ConnectTimeout: psp.example ...`: what a viewer sees of an error."""
    if text is None:
        return None
    found = re.match(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?=:|$)", text)
    return found[0] if found else _AN_ERROR


def before_quote(sentence: str) -> str:
    """The part of a sentence before it quotes."""
    head, colon, _ = sentence.partition(": ")
    return f"{masked_text(head)}." if colon else masked_text(sentence)


Declared = Callable[
    [str], Collection[str]
]  # by task: the names that it masks; of "": those that any task masks


def _nothing(_: str) -> Collection[str]:
    return ()


def for_role(value: Any, role: Role, declared: Declared = _nothing) -> Any:
    """What this role sees of it: plain dicts, lists and values. Secrets are masked for everybody."""
    return _seen(value, role, _Names(declared, declared("")), is_content=False)


@dataclass(frozen=True, slots=True)
class _Names:
    """Which names in content are secrets: those of the task that it belongs to."""

    declared: Declared
    here: Collection[str] = ()

    def within(self, value: Mapping[Any, Any]) -> "_Names":
        task = value.get("task")
        return _Names(self.declared, self.declared(task)) if isinstance(task, str) else self

    def and_within(self, value: Mapping[Any, Any]) -> "_Names":
        """The same in content, as in what follows a job. Content may say anything, so that names are only added."""
        return _Names(self.declared, {*self.here, *self.within(value).here})


def _seen(value: Any, role: Role, names: _Names, *, is_content: bool) -> Any:
    if isinstance(value, Mapping):
        names = names.and_within(value) if is_content else names.within(value)
        return {
            str(name): _field(str(name), item, role, names, is_content=is_content)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_seen(item, role, names, is_content=is_content) for item in value]
    return masked_text(value, names=names.here) if isinstance(value, str) else value


def _field(name: str, item: Any, role: Role, names: _Names, *, is_content: bool) -> Any:
    if item is None:
        return None
    is_secret = is_secret_name(name) or (is_content and name in names.here)
    is_content = is_content or name in _CONTENT or (name in _CHANGES and isinstance(item, Mapping))
    if role == "viewer" and is_content:
        return form_of(item)
    if role == "viewer" and name in _ERRORS and isinstance(item, str):
        return _AN_ERROR if name in _WORDS else class_of_error(item)
    if role == "viewer" and name in _QUOTING and isinstance(item, str):
        return before_quote(item)
    if role == "viewer" and name == "details" and isinstance(item, list):
        return [before_quote(line) if isinstance(line, str) else for_role(line, role) for line in item]
    is_answer = isinstance(item, bool) and not is_content  # `is_secret` of Holdfast's, not a user's `otp`
    if is_secret and item not in ("", [], {}) and not is_answer:
        return MASK
    item = within_text(item, names.here) if is_content and isinstance(item, str) else item
    return _seen(item, role, names, is_content=is_content)
