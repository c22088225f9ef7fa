"""HTTP for probes and scrapes: GET and HEAD, one request per connection, bounded in size, time and number.

No reply waits for anything, so a connection that takes longer than a few seconds is not a probe and is cut. When there are
too many at once, the oldest is closed: a probe sends its request at once and gets its reply, whatever else is connected.
"""

import asyncio
import errno
import logging
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus

from .. import telemetry
from ..errors import ConfigurationError

PATIENCE = 5.0  # seconds for a whole exchange
MOST_BYTES = 8192  # of a request
MOST_CONNECTIONS = 50
_REQUEST = re.compile(r"([A-Z]+) (\S+) HTTP/1\.[01]")


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"

    def render(self, *, with_body: bool) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Date: {formatdate(usegmt=True)}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if self.status == HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET, HEAD")
        return "\r\n".join([*lines, "", ""]).encode() + (self.body if with_body else b"")


Route = Callable[[str], Reply]  # takes the request's Accept header


def listen(host: str, port: int) -> socket.socket:
    """The listening socket; ConfigurationError says why it cannot be opened."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"health port {port} of {host} is in use, perhaps by another worker. Choose another one "
                "(--health-port, HOLDFAST_HEALTH_PORT), or 0 for any free one"
            ) from None
        raise ConfigurationError(
            f"health port {port} of {host} cannot be opened: {error.strerror or error}. Check --health-port "
            "(HOLDFAST_HEALTH_PORT) and --health-host (HOLDFAST_HEALTH_HOST)"
        ) from None


class Server:
    """Serves a listening socket until `close`. Belongs to one event loop."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = dict(routes)
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the oldest first
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=sock, limit=MOST_BYTES)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        waiting = list(self._open)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._exchange(reader, writer))
        self._open[task] = writer
        task.add_done_callback(lambda done: self._open.pop(done, None))
        if len(self._open) > MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            self._open.pop(oldest).transport.abort()  # here: a task that has not begun would never do it
            oldest.cancel()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError):  # went away, or was too slow
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE).render(with_body=True)
        line, *fields = head.decode("latin-1").split("\r\n")
        request = _REQUEST.fullmatch(line)
        if request is None:
            return _plain(HTTPStatus.BAD_REQUEST).render(with_body=True)
        method, target = request.groups()
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED).render(with_body=True)
        route = self._routes.get(target.partition("?")[0])
        reply = _not_found(self._routes) if route is None else _called(route, _accept_of(fields), target)
        return reply.render(with_body=method == "GET")


def _called(route: Route, accept: str, target: str) -> Reply:
    try:
        return route(accept)
    except Exception as error:  # noqa: BLE001 the port continues
        said = f"{type(error).__name__}: {error}"
        telemetry.emit("health.failed", level=logging.ERROR, path=target, error=said)
        return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _accept_of(fields: list[str]) -> str:
    named = (field.partition(":") for field in fields)
    return ",".join(value.strip() for name, _, value in named if name.lower() == "accept")


def _plain(status: HTTPStatus) -> Reply:
    return Reply(status, f"{status.phrase}\n".encode())


def _not_found(routes: Mapping[str, Route]) -> Reply:
    return Reply(HTTPStatus.NOT_FOUND, f"There is: {' '.join(routes)}\n".encode())
