"""Requests as senders make them, and an ASGI client without a server."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.model import signing

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
JSON = ("content-type", "application/json")
Headers = list[tuple[str, str]]


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


def standard(
    body: bytes, message_id: str = "msg_1", *, at: int | None = None, secrets: Sequence[str] = (SECRET,)
) -> Headers:
    """The headers of Standard Webhooks."""
    now = int(time.time()) if at is None else at
    signature = signing.signature_header(secrets, message_id, now, body)
    return [
        JSON,
        ("webhook-id", message_id),
        ("webhook-timestamp", str(now)),
        ("webhook-signature", signature),
    ]


def hexdigest(secret: str, message: bytes, algorithm: str = "sha256") -> str:
    return hmac.new(secret.encode(), message, algorithm).hexdigest()


def b64digest(secret: str, message: bytes) -> str:
    return base64.b64encode(hmac.new(secret.encode(), message, hashlib.sha256).digest()).decode()


def body_of(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


async def post(
    asgi: Callable[..., Awaitable[None]],
    headers: Iterable[tuple[str, str]],
    body: bytes | Iterable[bytes] = b"",
    *,
    method: str = "POST",
) -> Reply:
    """One request, straight to the app. A body of parts is chunked: it has no Content-Length."""
    parts = iter([body] if isinstance(body, bytes) else body)
    pairs = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in headers]
    if isinstance(body, bytes) and not any(n == b"content-length" for n, _ in pairs):
        pairs.append((b"content-length", str(len(body)).encode()))
    pending = [next(parts, b"")]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        part = pending.pop()
        following = next(parts, None)
        if following is not None:
            pending.append(following)
        return {"type": "http.request", "body": part, "more_body": following is not None}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "/", "headers": pairs}
    await asgi(scope, receive, send)
    start, end = sent
    found = {n.decode(): v.decode() for n, v in start["headers"]}
    return Reply(start["status"], found, end["body"].decode())
