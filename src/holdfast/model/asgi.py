"""What Holdfast's ASGI apps need of HTTP, without a framework: types, a body within bounds, a reply."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGI: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
AnyHeaders = Mapping[str, str] | Mapping[str, Sequence[str]] | Iterable[tuple[str, str]]

READ_WITHIN = 30.0  # seconds for a whole body


class App:
    """An object: servers take a method for an app of ASGI 2, and Starlette's routes take a function for a view."""

    def __init__(self, run: ASGI) -> None:
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(scope, receive, send)


class ClientGone(Exception):
    """The client went away."""


class BadBody(Exception):
    """The body is not read: 400, 408 or 413, and why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def by_name(headers: AnyHeaders) -> dict[str, list[str]]:
    """Every value by the name of its header in lower case."""
    found: dict[str, list[str]] = {}
    items: Any = getattr(headers, "items", lambda: headers)()  # also those of a framework that are no Mapping
    for name, value in items:
        found.setdefault(name.lower(), []).extend([value] if isinstance(value, str) else value)
    return found


def headers_of(scope: Scope) -> dict[str, list[str]]:
    """The headers of a request, as by_name() returns them."""
    found: dict[str, list[str]] = {}
    for raw, value in scope["headers"]:
        found.setdefault(raw.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


async def read_body(headers: Mapping[str, Sequence[str]], receive: Receive, most: int, larger: str) -> bytes:
    """The whole body. BadBody as soon as it is known to be larger than `most`, before reading if its header says so."""
    length = headers.get("content-length", ["0"])[0]
    if not (length.isascii() and length.isdigit()):
        raise BadBody(400, "Content-Length is no number")
    if len(length) > 15 or int(length) > most:
        raise BadBody(413, larger)
    try:
        async with asyncio.timeout(READ_WITHIN):
            return await _read(receive, most, larger)
    except TimeoutError:
        raise BadBody(408, f"the body was not sent within {READ_WITHIN:g} s") from None


async def _read(receive: Receive, most: int, larger: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise BadBody(413, larger)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def respond(scope: Scope, send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """A whole reply. A sender that is refused before it has sent all would keep sending: HTTP/1 ends its connection."""
    closes = status in (408, 413) and str(scope.get("http_version", "1.1")).startswith("1")
    every = {**headers, "content-length": str(len(body)), **({"connection": "close"} if closes else {})}
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in every.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


async def not_http(scope: Scope, receive: Receive, send: Send) -> bool:
    """Whether it was no request: the lifespan of a server that serves the app alone, or a websocket, which is refused."""
    if scope["type"] == "http":
        return False
    if scope["type"] != "lifespan":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
        return True
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return True
