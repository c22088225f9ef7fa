"""Masking of secrets: values under names that mean secrets, and texts that look like secrets
wherever they are."""

import functools
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

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
    re.compile(r"(?i)(?<=\bbearer )[\w.~+/=-]{8,}"),
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    re.compile(r"(?<=://)[^\s/:@]*:[^\s/@]+(?=@)"),
)
# Every pattern here starts once in a run of letters: one that starts at each of them takes the square of the time.
# The last part of a JWT may be missing: lists and errors are cut where they are made.
_JWT = re.compile(r"(?<![\w-])(?=([\w-]*?)eyJ[\w-]{8})[\w-]+\.[\w-]{8,}(?:\.[\w-]*)?")
_VALUE = r"(\"[^\"]*(?:\"|\Z)|'[^']*(?:'|\Z)|(?!••)[^\s\"',;&)}\]]+)"
_ASSIGNED = re.compile(rf"(?i)((?:{_NAMED})[\w-]{{0,40}}[\"']?\s*[=:]\s*){_VALUE}")
# What a handler does not take, as our errors quote it: by the parameter, or by where in it.
_UNFIT = re.compile(r"((?:parameter '[^'\n]{1,80}'|(?<![\w.])[\w.]{1,80}: )[^\n]{0,300}?[,:] not )[^\n]+")
_OF_UNFIT = re.compile(r"parameter '([^'\n]+)'|([\w.]+): ")
_DIGITS = re.compile(r"\b(?:[0-9][ -]?){12,18}[0-9]\b")
_LONGEST = 1024 * 1024  # characters of one value
_WORD = 4096  # characters: a cut text ends before its last word of at most that length, for half a token looks like none


def is_secret_name(name: str) -> bool:
    """`card_token`, `userPassword`, `X-Api-Key`; not `tokens` or `author`."""
    parts = [part.lower() for part in _PART.findall(name)]
    return any(part in _WORDS for part in parts) or any(
        f"{one} {other}" in _PAIRS for one, other in itertools.pairwise(parts)
    )


def masked(value: Any, most: int = _LONGEST, names: Collection[str] = ()) -> Any:
    """The value with every secret in it replaced, and `most` characters of it in all. `names` are secrets too."""
    return _Masking(most, names).masked(value)


class _Masking:
    def __init__(self, left: int, names: Collection[str]) -> None:
        self._left = left
        self._names = names

    def masked(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return self._list(value)
        self._left -= 1
        return self._text(value) if isinstance(value, str) else value

    def _mapping(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for name, item in value.items():
            if self._left <= 0:
                found["…"] = f"{len(value) - len(found):,} more"
                break
            self._left -= 1 + len(str(name))
            is_secret = is_secret_name(str(name)) or str(name) in self._names
            found[name] = MASK if is_secret and item not in (None, "") else self.masked(item)
        return found

    def _list(self, value: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        for item in value:
            if self._left <= 0:
                found.append(f"… {len(value) - len(found):,} more")
                break
            self._left -= 1
            found.append(self.masked(item))
        return found

    def _text(self, text: str) -> str:
        seen = masked_text(text, max(self._left, 0), self._names)
        self._left -= len(text)
        return seen


def masked_text(text: str, most: int = _LONGEST, names: Collection[str] = ()) -> str:
    """The text with every secret in it replaced, `most` characters of it. A value beside one of `names` is a secret too, as
    errors quote it: `name=value`, `'name': value`, or `parameter 'name' must be a number: not value`."""
    more = ""
    if len(text) > most:
        text, whole = _cut(text, most), len(text)
        more = f"… and {whole - len(text):,} characters more"
    for pattern in _IN_TEXT:
        text = pattern.sub(MASK, text)
    text = _JWT.sub(rf"\1{MASK}", text)
    text = _UNFIT.sub(_unfit, text)
    text = _ASSIGNED.sub(lambda found: found[1] + MASK, text)
    if names:
        for pattern in _beside(frozenset(names)):
            text = pattern.sub(lambda found: found[1] + MASK, text)
    return _DIGITS.sub(_card, text) + more


@functools.lru_cache(128)
def _beside(names: frozenset[str]) -> tuple[re.Pattern[str], ...]:
    """The value beside one of the names. The text that is searched for each of them is bounded."""
    one = rf"(?<!\w)(?:{'|'.join(re.escape(name) for name in sorted(names))})"
    return (
        re.compile(rf"({one}(?:[\"']\s{{0,8}}:|\s{{0,8}}=)\s{{0,8}}){_VALUE}"),
        re.compile(rf"({one}\b[^\n]{{0,200}}?[,:] not )[^\n]+"),
    )


def _cut(text: str, most: int) -> str:
    """Not within a word: the first half of a token looks like none."""
    head = text[:most]
    gap = max(head.rfind(mark, max(most - _WORD, 0)) for mark in " \n\t\"',;")
    return head[: gap + 1] if gap >= 0 else head


def _unfit(found: re.Match[str]) -> str:
    names = (name for pair in _OF_UNFIT.findall(found[1]) for one in pair for name in one.split("."))
    return found[1] + MASK if any(map(is_secret_name, names)) else found[0]


def _card(found: re.Match[str]) -> str:
    digits = [int(c) for c in found[0] if c.isdigit()]
    doubled = sum(sum(divmod(2 * d, 10)) if n % 2 else d for n, d in enumerate(reversed(digits)))
    return MASK if doubled % 10 == 0 and len(set(digits)) > 1 else found[0]
