"""What is not shown: values under names that mean secrets, and what looks like one wherever it stands.

It is done once, on the server, before a template, a JSON answer or a stream sees the value.
"""

import itertools
import re
from collections.abc import Mapping
from typing import Any

from holdfast.model import exact
from holdfast.pages import Role

MASK = "••••••••"
_WORDS = frozenset((
    "password", "passwd", "passphrase", "pwd", "secret", "secrets", "token", "authorization", "cookie",
    "cookies", "credential", "credentials", "cvv", "cvc", "iban", "ssn", "otp", "pin", "jwt", "bearer",
    "csrf", "sessionid", "apikey", "accesskey", "privatekey", "cardnumber", "auth",
))  # fmt: skip
_PAIRS = frozenset(
    (
        "api key",
        "access key",
        "private key",
        "card number",
        "session id",
        "secret key",
        "signing key",
        "card no",
    )
)
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAMED = r"password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|authorization|cookie"
_IN_TEXT = (
    re.compile(
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"(?i)(?<=\bbearer )[\w.~+/=-]{8,}"),
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    re.compile(r"(?<=://)[^\s/:@]*:[^\s/@]+(?=@)"),
)
_ASSIGNED = re.compile(
    rf"(?i)(\b[\w-]{{0,40}}(?:{_NAMED})[\w-]{{0,40}}[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|(?!••)[^\s\"',;&)}}\]]+)"
)
_DIGITS = re.compile(r"\b(?:[0-9][ -]?){12,18}[0-9]\b")

_CONTENT = frozenset((
    "payload", "result", "metadata", "data", "headers", "follow_ups", "shown", "input", "arguments",
    "selection",
))  # fmt: skip
_ERRORS = frozenset((
    "last_error", "error", "message", "trace", "note", "problem", "hold_reason", "cancel_reason", "reason",
))  # fmt: skip

_QUOTING = frozenset(("sentence", "what"))
_LONGEST = 1024 * 1024  # characters of one text that programs get


def is_secret_name(name: str) -> bool:
    """`card_token`, `userPassword`, `X-Api-Key`; not `tokens` or `author`."""
    parts = [part.lower() for part in _PART.findall(name)]
    return any(part in _WORDS for part in parts) or any(
        f"{one} {other}" in _PAIRS for one, other in itertools.pairwise(parts)
    )


def masked(value: Any) -> Any:
    """The value with every secret in it replaced."""
    if isinstance(value, Mapping):
        return {
            name: MASK if is_secret_name(str(name)) and item not in (None, "") else masked(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return masked_text(value) if isinstance(value, str) else value


def masked_text(text: str) -> str:
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}… and {len(text) - _LONGEST:,} characters more"
    for pattern in _IN_TEXT:
        text = pattern.sub(MASK, text)
    text = _ASSIGNED.sub(lambda found: found[1] + MASK, text)
    return _DIGITS.sub(_card, text)


def _card(found: re.Match[str]) -> str:
    digits = [int(c) for c in found[0] if c.isdigit()]
    doubled = sum(sum(divmod(2 * d, 10)) if n % 2 else d for n, d in enumerate(reversed(digits)))
    return MASK if doubled % 10 == 0 and len(set(digits)) > 1 else found[0]


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


def class_of_error(text: str | None) -> str | None:
    """`ConnectTimeout` of `ConnectTimeout: psp.example ...`: what a viewer sees of an error."""
    if text is None:
        return None
    found = re.match(r"[A-Za-z_][\w.]*(?=:|$)", text)
    return found[0] if found else "an error"


def before_quote(sentence: str) -> str:
    """What a sentence says before it quotes."""
    head, colon, _ = sentence.partition(": ")
    return f"{masked_text(head)}." if colon else masked_text(sentence)


def for_role(value: Any, role: Role) -> Any:
    """What this role sees of it: plain dicts, lists and values. Secrets are masked for everybody."""
    if isinstance(value, Mapping):
        return {str(name): _field(str(name), item, role) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [for_role(item, role) for item in value]
    return masked_text(value) if isinstance(value, str) else value


def _field(name: str, item: Any, role: Role) -> Any:
    if item is None:
        return None
    if role == "viewer" and name in _CONTENT:
        return form_of(item)
    if role == "viewer" and name in _ERRORS and isinstance(item, str):
        return class_of_error(item)
    if role == "viewer" and name in _QUOTING and isinstance(item, str):
        return before_quote(item)
    if role == "viewer" and name == "details" and isinstance(item, list):
        return [before_quote(line) if isinstance(line, str) else for_role(line, role) for line in item]
    if is_secret_name(name) and item not in ("", [], {}) and not isinstance(item, bool | int):
        return MASK
    return for_role(item, role)
