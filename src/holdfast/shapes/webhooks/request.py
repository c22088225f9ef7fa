"""The request of a delivery: the bytes of its body, its headers, its signatures."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from ...egress import Reply
from ...model.sealing import KeyRing, Sealed, bound_to
from ...model.signing import signature_header
from .store import Ready, Stored

KEPT_BODY = 4096  # bytes of a reply
KEPT_HEAD = 8192
HIDDEN = "(hidden)"
AGENT = "Holdfast-Webhooks/1"
JSON = "application/json"
CLOUDEVENTS = "application/cloudevents+json"


def standard_body(event: Stored) -> bytes:
    """Assembled from the text of the log: the same bytes on every attempt."""
    time = event.time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return f'{{"type":{json.dumps(event.type)},"timestamp":"{time}","data":{event.data}}}'.encode()


def made_body(made: object) -> bytes:
    """The return value of a user's function."""
    if not isinstance(made, Mapping):
        raise TypeError(f"payload() must return a JSON object, not {type(made).__name__}")
    return json.dumps(dict(made), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def truncated_body(event: Stored) -> bytes:
    """The replacement of a body that is too large: its type, time and id, by which the receiver may ask."""
    time = event.time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    found = {"type": event.type, "timestamp": time, "id": str(event.id), "data": None, "truncated": True}
    return json.dumps(found, separators=(",", ":")).encode()


def secrets_of(ready: Ready, endpoint: UUID, ring: KeyRing) -> list[str]:
    """The secrets that sign now, the newest first."""
    found = zip(ready.secret_ids or (), ready.secret_keys or (), ready.secrets or (), strict=True)
    return [
        ring.open(Sealed(key_id, bytes(sealed)), bound_to("secret", endpoint, secret_id))
        for secret_id, key_id, sealed in found
    ]


def own_headers(ready: Ready, endpoint: UUID, ring: KeyRing) -> dict[str, str]:
    """Those that the endpoint was made with."""
    if ready.headers is None:
        return {}
    text = ring.open(Sealed(ready.headers_key_id, bytes(ready.headers)), bound_to("headers", endpoint))
    found: dict[str, str] = json.loads(text)
    return found


def headers_of(
    event_id: str, timestamp: int, body: bytes, secrets: list[str], content_type: str
) -> dict[str, str]:
    """By Standard Webhooks 1.0. The id is that of the event, on every attempt."""
    return {
        "content-type": content_type,
        "user-agent": AGENT,
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature_header(secrets, event_id, timestamp, body),
    }


def request_head(own: Mapping[str, str], headers: Mapping[str, str], size: int) -> dict[str, Any]:
    """The recorded part of a request. Values of headers that users chose are left out: they may be tokens."""
    return {**dict.fromkeys(own, HIDDEN), **headers, "content-length": str(size)}


def response_head(reply: Reply) -> dict[str, str]:
    """The recorded part of a reply."""
    kept: dict[str, str] = {}
    room = KEPT_HEAD
    for name, value in reply.headers.items():
        shown = HIDDEN if name == "set-cookie" else _text(value)
        room -= len(name) + len(shown)
        if room < 0:
            break
        kept[_text(name)] = shown
    return kept


def response_body(reply: Reply) -> str:
    return _text(reply.body[:KEPT_BODY].decode("utf-8", "replace"))


def _text(value: str) -> str:
    """Text that a database takes."""
    if value.isascii() and "\0" not in value:
        return value
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def ping_of(ready: Ready) -> Stored:
    """A message without content: it is in no log. Its time is that of its id."""
    at = datetime.fromtimestamp((ready.event_id.int >> 80) / 1000, UTC)
    return Stored(0, 0, ready.event_id, ready.event_type, 1, None, at, None, "{}")
