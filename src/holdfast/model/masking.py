"""Values that people must not read where they have no need to: by the name they stand under."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASKED = "***"
_PARTS = ("password", "passwd", "passphrase", "secret", "token", "apikey", "authorization", "credential", "privatekey",
          "cookie", "cardnumber", "cvv", "cvc", "iban", "ssn")  # fmt: skip
_WHOLE = frozenset({"auth", "pin", "pwd", "card", "otp", "jwt"})
_WORD = re.compile(r"[^a-z0-9]+")


def is_secret(name: str) -> bool:
    """Whether what stands under this name is most likely a secret: `api_key`, `X-Auth-Token`, `cardNumber`."""
    bare = _WORD.sub("", name.lower())
    return bare in _WHOLE or any(part in bare for part in _PARTS)


def masked(value: Any) -> Any:
    """The same JSON value with every secret in it replaced, however deep it stands."""
    if isinstance(value, Mapping):
        return {name: MASKED if is_secret(str(name)) else masked(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [masked(inner) for inner in value]
    return value
