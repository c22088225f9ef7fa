"""What people must not read where they have no need to: values under names that mean secrets, and what looks like one
wherever it stands."""

import itertools
import re
from collections.abc import Mapping
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
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"(?i)(?<=\bbearer )[\w.~+/=-]{8,}"),
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    re.compile(r"(?<=://)[^\s/:@]*:[^\s/@]+(?=@)"),
)
_ASSIGNED = re.compile(
    rf"(?i)(\b[\w-]{{0,40}}(?:{_NAMED})[\w-]{{0,40}}[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|(?!••)[^\s\"',;&)}}\]]+)"
)
_DIGITS = re.compile(r"\b(?:[0-9][ -]?){12,18}[0-9]\b")
_LONGEST = 1024 * 1024  # characters of one text


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
