"""Signatures of Standard Webhooks 1.0, made and checked: v1 (HMAC-SHA256) and v1a (ed25519).

The signed text is `id.timestamp.body`, over the bytes of the body as they are sent. A secret is text: `whsec_` and base64 of
the HMAC key, `whsk_` and base64 of an ed25519 private key, or `whpk_` and base64 of its public key, which can only check.
"""

import base64
import binascii
import functools
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Any, Protocol

from ..distribution import install
from ..errors import ConfigurationError
from .sealing import Hidden

MOST_SIGNATURES = 10  # signatures of one header that are checked
_ID = re.compile("[!-~]{1,256}")
_PREFIXES = ("whsec_", "whsk_", "whpk_")


class Key(Protocol):
    """One secret, ready for use."""

    @property
    def scheme(self) -> str: ...

    def sign(self, message: bytes) -> bytes: ...

    def fits(self, message: bytes, signature: bytes) -> bool: ...


class HmacKey:
    """v1. The signature is compared in constant time."""

    scheme = "v1"

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, message: bytes) -> bytes:
        return hmac.digest(self._secret, message, hashlib.sha256)

    def fits(self, message: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(self.sign(message), signature)


class Ed25519Key:
    """v1a: `private` signs and checks, a public key alone checks."""

    scheme = "v1a"

    def __init__(self, raw: bytes, *, private: bool) -> None:
        try:
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric import ed25519
        except ImportError:
            raise ConfigurationError(
                f"signatures v1a need the package cryptography: {install('ed25519')}"
            ) from None
        self._invalid = InvalidSignature
        self._private: Any = None
        try:
            if private:
                self._private = ed25519.Ed25519PrivateKey.from_private_bytes(raw[:32])
                self._public = self._private.public_key()
            else:
                self._public = ed25519.Ed25519PublicKey.from_public_bytes(raw)
        except ValueError as error:
            raise ConfigurationError(f"an ed25519 key is not usable: {error}") from None

    @property
    def public(self) -> str:
        """The public key as receivers are given it: `whpk_...`."""
        return "whpk_" + base64.b64encode(self._public.public_bytes_raw()).decode()

    def sign(self, message: bytes) -> bytes:
        if self._private is None:
            raise ConfigurationError("a public key (whpk_...) cannot sign. Pass the private one: whsk_...")
        signed: bytes = self._private.sign(message)
        return signed

    def fits(self, message: bytes, signature: bytes) -> bool:
        try:
            self._public.verify(signature, message)
        except self._invalid:
            return False
        return True


def new_secret(scheme: str = "v1") -> str:
    """A secret for signing: 32 random bytes, Hidden."""
    prefix = {"v1": "whsec_", "v1a": "whsk_"}[scheme]
    return Hidden(prefix + base64.b64encode(secrets.token_bytes(32)).decode())


def public_key(secret: str) -> str | None:
    """The key that receivers check v1a signatures with: `whpk_...`. None: the secret is an HMAC key, shared by both."""
    key = key_of(secret)
    return key.public if isinstance(key, Ed25519Key) else None


@functools.lru_cache(maxsize=1024)
def key_of(secret: str) -> Key:
    """The key of a secret; ConfigurationError without the secret in it when it cannot be one."""
    prefix = next((p for p in _PREFIXES if secret.startswith(p)), "")
    try:
        raw = base64.b64decode(secret.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(
            "a secret of Standard Webhooks is whsec_, whsk_ or whpk_ and then base64; one that was given is not"
        ) from None
    if not raw:
        raise ConfigurationError("a secret of Standard Webhooks is empty after its prefix")
    return HmacKey(raw) if prefix in ("", "whsec_") else Ed25519Key(raw, private=prefix == "whsk_")


def unbase64(text: str) -> bytes | None:
    """The bytes, if the text is their only valid form: the last character has bits that a decoder ignores."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return found if base64.b64encode(found).decode() == text else None


def signed_bytes(message_id: str, timestamp: int | str, body: bytes) -> bytes:
    return f"{message_id}.{timestamp}.".encode() + body


def signature_header(keys: Sequence[str], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: a signature by each secret, in their order (the newest first)."""
    if not _ID.fullmatch(message_id) or "." in message_id:
        raise ConfigurationError(
            f"a message id is 1 to 256 printable characters without spaces and dots, not {message_id!r}"
        )
    message = signed_bytes(message_id, timestamp, body)
    found = [key_of(secret) for secret in keys]
    return " ".join(f"{key.scheme},{base64.b64encode(key.sign(message)).decode()}" for key in found)


def fits(keys: Sequence[str], message_id: str, timestamp: str, header: str, body: bytes) -> bool:
    """Whether one of the signatures is by one of the secrets. Checks all of them, whichever fits."""
    message = signed_bytes(message_id, timestamp, body)
    found = False
    for part in header.split(" ")[:MOST_SIGNATURES]:
        scheme, _, text = part.partition(",")
        if (signature := unbase64(text)) is None:
            continue
        for secret in keys:
            key = key_of(secret)
            if key.scheme == scheme:
                found |= key.fits(message, signature)
    return found
