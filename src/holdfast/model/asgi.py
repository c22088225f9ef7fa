"""What Holdfast's ASGI apps need of HTTP, without a framework: types, a body within bounds, a reply."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
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
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        if name in found:
            found[name].append(text)
        else:
            found[name] = [text]
    return found


async def read_body(headers: Mapping[str, Sequence[str]], receive: Receive, most: int, larger: str) -> bytes:
    """The whole body. BadBody as soon as it is known to be larger than `most`, before reading if its header says so."""
    length = headers.get("content-length", ["0"])[0]
    if not (length.isascii() and length.isdigit()):
        raise BadBody(400, "Content-Length is no number")
    if len(length) > 15 or int(length) > most:
        raise BadBody(413, larger)
    steps = _read(receive, most, larger).__await__()
    try:
        first = next(steps)
    except (
        StopIteration
    ) as done:  # it is there already, as it mostly is: a timer would cost more than reading it
        return bytes(done.value)
    try:
        async with asyncio.timeout(READ_WITHIN):
            return await _Begun(steps, first)
    except TimeoutError:
        raise BadBody(408, f"the body was not sent within {READ_WITHIN:g} s") from None


class _Begun:
    """The rest of a coroutine that has taken its first step, and waits for what that gave."""

    __slots__ = ("_first", "_steps")

    def __init__(self, steps: Generator[Any, Any, bytes], first: Any) -> None:
        self._steps, self._first = steps, first

    def __await__(self) -> Generator[Any, Any, bytes]:
        waits = self._first
        try:
            while True:
                try:
                    answer = yield waits
                except BaseException as error:  # noqa: BLE001 it is the coroutine's to handle
                    waits = self._steps.throw(error)
                else:
                    waits = self._steps.send(answer)
        except StopIteration as done:
            return bytes(done.value)


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
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    pairs.append((b"content-length", b"%d" % len(body)))
    if status in (408, 413) and str(scope.get("http_version", "1.1")).startswith("1"):
        pairs.append((b"connection", b"close"))
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
