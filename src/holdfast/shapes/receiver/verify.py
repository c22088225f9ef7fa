"""Verifiers of the usual webhooks. Each gets the raw bytes of the body, before any of it is parsed.

Several secrets mean a rotation: a message signed by any of them is accepted. A wrong signature is VerificationFailed, to
which the reply is one text whatever the cause; a malformed message is InvalidMessage.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from ...errors import InvalidMessage, TaskDefinitionError, VerificationFailed
from ...model import signing
from ...model.duration import Duration, seconds
from ...model.signing import MOST_SIGNATURES
from ...model.text import storable

Secrets: TypeAlias = str | Sequence[str] | Callable[[], Sequence[str]]  # several: rotation
Headers: TypeAlias = Mapping[str, Sequence[str]]  # names in lower case
TOLERANCE = 300.0  # seconds that the clocks of sender and receiver may differ
FORM = "application/x-www-form-urlencoded"
_ID = re.compile("[!-~]{1,256}")
_TIMESTAMP = re.compile("[0-9]{1,12}")
_FIELDS = ("{body}", "{timestamp}", "{id}")


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verifier: `Verified("evt_1")`."""

    message_id: str
    timestamp: datetime | None = None
    key_id: str | None = None


@runtime_checkable
class Verifier(Protocol):
    """Decides whether a request is genuine, and what its id is."""

    def verify(self, headers: Headers, body: bytes, now: datetime) -> Verified:
        """Raises VerificationFailed. Gets the raw bytes; `headers` have lower-case names."""
        ...


def one(headers: Headers, name: str) -> str:
    """The only value of a header. VerificationFailed: there is none; InvalidMessage: there are several."""
    found = headers.get(name, ())
    if len(found) > 1:
        raise InvalidMessage(f"the header {name} is there {len(found)} times")
    if not found or not found[0]:
        raise VerificationFailed(f"there is no header {name}")
    if (
        not found[0].isascii() and storable(found[0], 4 * len(found[0])) != found[0]
    ):  # from a framework that reads headers with surrogateescape
        raise InvalidMessage(f"the header {name} is no text")
    return found[0]


def checked_id(text: object, what: str) -> str:
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise InvalidMessage(f"{what} must be 1 to 256 printable characters without spaces")
    return text


def checked_time(text: str, now: datetime, tolerance: float) -> datetime:
    """Digits only, and not further from now than the tolerance."""
    if not _TIMESTAMP.fullmatch(text):
        raise VerificationFailed("the timestamp is no number of seconds")
    if abs(now.timestamp() - int(text)) > tolerance:
        raise VerificationFailed(f"the timestamp is more than {tolerance:g} s away from now")
    return datetime.fromtimestamp(int(text), UTC)


class _Secrets:
    """The secrets of a verifier, read again for each message if a function gives them."""

    def __init__(self, given: Secrets) -> None:
        self._given = given
        if not callable(given):
            self()

    def __call__(self) -> list[str]:
        given = self._given() if callable(self._given) else self._given
        found = [given] if isinstance(given, str) else list(given)
        if not found or not all(isinstance(secret, str) and secret for secret in found):
            raise TaskDefinitionError(
                "a verifier needs a secret: a text, a list of texts, or a function that returns such a list"
            )
        return found


def _hmac_fits(
    keys: Sequence[str], message: bytes, signatures: Sequence[bytes], algorithm: str = "sha256"
) -> bool:
    """Every secret is compared with every signature, in constant time."""
    found = False
    for secret in keys:
        wanted = hmac.digest(secret.encode(), message, algorithm)
        for signature in signatures[:MOST_SIGNATURES]:
            found |= hmac.compare_digest(wanted, signature)
    return found


def _unhex(text: str) -> bytes:
    try:
        return bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        return b""


def _unbase64(text: str) -> bytes:
    return signing.unbase64(text) or b""


def _failed() -> VerificationFailed:
    return VerificationFailed("no signature is by one of our secrets")


def _parsed(body: bytes) -> Any:
    """The body of a genuine message, for its id alone. It is checked strictly before it is stored."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"the body is not JSON: {type(error).__name__}") from None


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class StandardWebhooks:
    """Standard Webhooks 1.0, v1 and v1a: `StandardWebhooks("whsec_...")`; `prefix="svix-"` for senders that use Svix's."""

    def __init__(
        self, secrets: Secrets, *, tolerance: Duration = TOLERANCE, prefix: str = "webhook-"
    ) -> None:
        self._secrets = _Secrets(secrets)
        self._tolerance = seconds(tolerance, "tolerance")
        self._prefix = prefix.lower()
        if not callable(secrets):
            for secret in self._secrets():
                signing.key_of(secret)

    def verify(self, headers: Headers, body: bytes, now: datetime) -> Verified:
        signature = one(headers, f"{self._prefix}signature")
        timestamp = one(headers, f"{self._prefix}timestamp")
        message_id = checked_id(one(headers, f"{self._prefix}id"), "the message id")
        if "." in message_id:  # id.timestamp.body is signed: with it, one signature fits several messages
            raise InvalidMessage("the message id must not have a full stop in it")
        if not signing.fits(self._secrets(), message_id, timestamp, signature, body):
            raise _failed()
        return Verified(message_id, checked_time(timestamp, now, self._tolerance))


class Stripe:
    """`Stripe-Signature: t=...,v1=...`. The id is that of the event, in the body."""

    def __init__(self, secrets: Secrets, *, tolerance: Duration = TOLERANCE) -> None:
        self._secrets = _Secrets(secrets)
        self._tolerance = seconds(tolerance, "tolerance")

    def verify(self, headers: Headers, body: bytes, now: datetime) -> Verified:
        parts = [part.partition("=") for part in one(headers, "stripe-signature").split(",")]
        times = [value for name, _, value in parts if name == "t"]
        if len(times) != 1 or not _TIMESTAMP.fullmatch(times[0]):
            raise VerificationFailed("the signature has no timestamp")
        signatures = [_unhex(value) for name, _, value in parts if name == "v1"]
        if not _hmac_fits(self._secrets(), times[0].encode() + b"." + body, signatures):
            raise _failed()
        at = checked_time(times[0], now, self._tolerance)
        found = _parsed(body)
        return Verified(
            checked_id(found.get("id") if isinstance(found, dict) else None, "id in the body"), at
        )


class GitHub:
    """`X-Hub-Signature-256`. There is no timestamp, and the delivery id is not signed: so the id of a message is the
    delivery and the digest of the body, and ids are to be kept for longer than anybody may replay one."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = _Secrets(secrets)

    def verify(self, headers: Headers, body: bytes, now: datetime) -> Verified:
        scheme, _, text = one(headers, "x-hub-signature-256").partition("=")
        delivery = one(headers, "x-github-delivery")
        if scheme != "sha256" or not _hmac_fits(self._secrets(), body, [_unhex(text)]):
            raise _failed()
        return Verified(checked_id(f"{delivery}:{_digest(body)}", "X-GitHub-Delivery"))


class Slack:
    """`X-Slack-Signature: v0=...`. The id is the event's; commands and interactions, which come as forms, have a trigger id.
    `url_verification` is replied to."""

    content_types = ("application/json", FORM)

    def __init__(self, secrets: Secrets, *, tolerance: Duration = TOLERANCE) -> None:
        self._secrets = _Secrets(secrets)
        self._tolerance = seconds(tolerance, "tolerance")

    def verify(self, headers: Headers, body: bytes, now: datetime) -> Verified:
        scheme, _, text = one(headers, "x-slack-signature").partition("=")
        timestamp = one(headers, "x-slack-request-timestamp")
        message = b"v0:" + timestamp.encode() + b":" + body
        if scheme != "v0" or not _hmac_fits(self._secrets(), message, [_unhex(text)]):
            raise _failed()
        return Verified("", checked_time(timestamp, now, self._tolerance))

    def id_of(self, data: Any, body: bytes) -> str:
        """The id of a genuine message, from its body."""
        found = (data.get("event_id") or data.get("trigger_id")) if isinstance(data, dict) else None
        return _digest(body) if found is None else checked_id(found, "event_id")

    def reply_to(self, data: Any) -> str | None:
        """The reply to a message that is only for the receiver itself; None: it becomes a job."""
        if isinstance(data, dict) and data.get("type") == "url_verification":
            return str(data.get("challenge", ""))[:1000]
        return None


class Shopify:
    """`X-Shopify-Hmac-Sha256`. The webhook's id is not signed and there is no timestamp, as with GitHub."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = _Secrets(secrets)

    def verify(self, headers: Headers, body: bytes, now: datetime) -> Verified:
        signature = _unbase64(one(headers, "x-shopify-hmac-sha256"))
        webhook = one(headers, "x-shopify-webhook-id")
        if not _hmac_fits(self._secrets(), body, [signature]):
            raise _failed()
        return Verified(checked_id(f"{webhook}:{_digest(body)}", "X-Shopify-Webhook-Id"))


class Hmac:
    """Any HMAC of the body: `Hmac(SECRET, header="X-Signature", id_header="X-Id", signed="{timestamp}.{body}",
    timestamp_header="X-Timestamp")`. An id that is not part of what is signed is taken with the digest of the body."""

    content_types = ("application/json", FORM)

    def __init__(
        self,
        secrets: Secrets,
        *,
        header: str,
        id_header: str | None,
        algorithm: Literal["sha256", "sha512"] = "sha256",
        encoding: Literal["hex", "base64"] = "hex",
        signed: str = "{body}",
        prefix: str = "",
        timestamp_header: str | None = None,
        tolerance: Duration = TOLERANCE,
    ) -> None:
        if algorithm not in ("sha256", "sha512") or encoding not in ("hex", "base64"):
            raise TaskDefinitionError(
                f"Hmac takes algorithm sha256 or sha512 and encoding hex or base64, not {algorithm!r} and {encoding!r}"
            )
        self._parts = re.split(r"(\{[^}]*\})", signed)
        names = [part for part in self._parts if part.startswith("{")]
        if "{body}" not in names or set(names) - set(_FIELDS):
            raise TaskDefinitionError(
                f"signed must have {{body}} in it, and may have {{timestamp}} and {{id}}, not {signed!r}"
            )
        for field, given, option in (
            ("{timestamp}", timestamp_header, "timestamp_header"),
            ("{id}", id_header, "id_header"),
        ):
            if field in names and given is None:
                raise TaskDefinitionError(f"signed has {field} in it, so Hmac needs {option}=")
        if timestamp_header is not None and "{timestamp}" not in names:
            raise TaskDefinitionError(
                "a timestamp that is not signed proves nothing: write it into signed, or leave timestamp_header out"
            )
        self._secrets = _Secrets(secrets)
        self._header, self._prefix = header.lower(), prefix
        self._id_header = None if id_header is None else id_header.lower()
        self._time_header = None if timestamp_header is None else timestamp_header.lower()
        self._algorithm, self._decode = algorithm, _unhex if encoding == "hex" else _unbase64
        self._signs_id = "{id}" in names
        self._tolerance = seconds(tolerance, "tolerance")

    def verify(self, headers: Headers, body: bytes, now: datetime) -> Verified:
        text = one(headers, self._header)
        message_id = "" if self._id_header is None else one(headers, self._id_header)
        timestamp = "" if self._time_header is None else one(headers, self._time_header)
        values = {"{body}": body, "{timestamp}": timestamp.encode(), "{id}": message_id.encode()}
        message = b"".join(values.get(part, part.encode()) for part in self._parts)
        signature = self._decode(text.removeprefix(self._prefix)) if text.startswith(self._prefix) else b""
        if not _hmac_fits(self._secrets(), message, [signature], self._algorithm):
            raise _failed()
        at = None if self._time_header is None else checked_time(timestamp, now, self._tolerance)
        if not self._signs_id:
            message_id = f"{message_id}:{_digest(body)}" if message_id else _digest(body)
        return Verified(checked_id(message_id, str(self._id_header)), at)
