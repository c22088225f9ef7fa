"""`Client`: sends a body to a URL that somebody else chose."""

import asyncio
import time
from collections.abc import Mapping
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import urljoin

from ..errors import ConfigurationError
from ..transport import MissingExtra
from .guard import Target, check_headers, parse
from .names import Resolver, SystemResolver
from .reply import Reply, SendFailed
from .settings import DEFAULT, Egress, NotAllowed

if TYPE_CHECKING:
    from .wire import Attempt, Line

_FOLLOWED = (301, 302, 307, 308)  # with the same method and body; 303 asks for another request
_FOR_ANYBODY = ("content-", "webhook-", "ce-")
_FOR_ANYBODY_TOO = frozenset(("accept", "traceparent", "tracestate", "user-agent"))


class Client:
    """Posts to URLs within an `Egress`. No reply of a server raises: `send` returns a `Reply` or a `SendFailed`.

    A name is resolved once per connection, all of its addresses are vetted, and one of those is called. Connections are kept
    for 15 seconds. `resolver` is for tests: `async (host, port) -> addresses`."""

    def __init__(self, egress: Egress | None = None, *, resolver: Resolver | None = None) -> None:
        self._egress = egress or DEFAULT
        self._given = resolver
        self._system: SystemResolver | None = None
        self._line: Line | None = None

    @property
    def egress(self) -> Egress:
        return self._egress

    async def open(self) -> None:
        if self._line is None:
            self._line = self._made(self._egress)

    def _made(self, egress: Egress) -> "Line":
        wire = _wire()
        resolver = self._given
        if resolver is None:
            resolver = self._system = self._system or SystemResolver()
        line: Line = wire.Line(egress, resolver)
        return line

    async def close(self) -> None:
        """Requests in progress end as failed."""
        line, self._line = self._line, None
        system, self._system = self._system, None
        if system is not None:
            system.close()
        if line is not None:
            await line.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def apply(self, egress: Egress) -> None:
        """Use another policy from now on, with new connections. Requests in progress end under the old one."""
        if egress == self._egress:
            return
        self._egress = egress
        old, self._line = self._line, None
        if old is not None:
            self._line = self._made(egress)
            if not old.busy:
                await old.close()

    async def send(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        redirects: int = 0,
        timeout: float | None = None,
        method: Literal["POST", "HEAD"] = "POST",
    ) -> Reply | SendFailed:
        """POST `body`, or ask for the head alone. Up to `redirects` redirects are followed, each parsed, resolved, checked
        again; another host gets no header except content-*, webhook-*, ce-* and those of a trace. `timeout`: shorter than
        the Egress's own."""
        line = self._line
        if line is None:
            raise ConfigurationError("the client is not open: await client.open() first")
        check_headers(headers)
        wire = _wire()
        attempt: Attempt = wire.Attempt()
        token = wire.ATTEMPT.set(attempt)
        limit = min(timeout or line.egress.timeout, line.egress.timeout)
        started = time.monotonic()
        line.busy += 1
        try:
            async with asyncio.timeout(limit):
                status, head, read = await _follow(line, method, url, body, headers, redirects)
            return Reply(status, head, read, attempt.address, time.monotonic() - started)
        except NotAllowed as error:
            return SendFailed("refused_address", str(error), attempt.address, time.monotonic() - started)
        except Exception as error:  # noqa: BLE001 whatever a server does, it is an outcome
            kind, detail = wire.meaning(error)
            if attempt.refused is not None:
                kind, detail = "refused_address", str(attempt.refused)
            return SendFailed(kind, detail, attempt.address, time.monotonic() - started)
        finally:
            wire.ATTEMPT.reset(token)
            line.busy -= 1
            if line is not self._line and not line.busy:
                await line.close()


async def _follow(
    line: "Line", method: str, url: str, body: bytes, headers: Mapping[str, str], redirects: int
) -> tuple[int, dict[str, str], bytes]:
    target = line.target(url)
    while True:
        status, head, read = await line.request(method, target, body, headers)
        where = head.get("location")
        if status not in _FOLLOWED or where is None or redirects <= 0:
            return status, head, read
        redirects -= 1
        previous, target = target, _next(target, where, line.egress)
        if target.origin != previous.origin:
            headers = {name: value for name, value in headers.items() if _for_anybody(name.lower())}


def _next(target: Target, where: str, egress: Egress) -> Target:
    try:
        url = urljoin(target.url, where)
    except ValueError:
        raise NotAllowed("the redirect cannot be read") from None
    found = parse(url, egress)
    if target.scheme == "https" and found.scheme != "https":
        raise NotAllowed("the redirect leads from https to http")
    return found


def _for_anybody(name: str) -> bool:
    return name in _FOR_ANYBODY_TOO or name.startswith(_FOR_ANYBODY)


def load() -> None:
    """Import the client's libraries ahead of the first request: that blocks the event loop. Raises MissingExtra."""
    _wire()


def _wire() -> ModuleType:
    """aiohttp and what knows it, when the first client is opened."""
    try:
        from . import wire
    except ImportError:
        raise MissingExtra("aiohttp", "webhooks") from None
    return wire
