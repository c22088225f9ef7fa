"""The only module that uses aiohttp: connections that the guard has checked, one request, and the meaning of errors.

The guard is called in two places. The resolver checks every address of a name before one is dialled, and the socket factory
checks the address that is dialled: aiohttp asks no resolver about literal addresses.
"""

import asyncio
import functools
import io
import os
import socket
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from .addresses import Address
from .guard import Target, parse, vet
from .names import Resolver
from .reply import Kind
from .settings import Egress, NotAllowed

KEEP_ALIVE = 15.0
MOST_KEPT = 256  # connections; above that each is closed after its request
MOST_BODY = 64 * 1024
MOST_HEAD = 64 * 1024
MOST_TARGETS = 1024  # URLs that need not be read again: the result depends on the text and the policy alone
MOST_ADDRESSES = 8  # addresses of a name that are tried
MOST_INTERIM = 16  # 1xx replies before the final one: each costs time of the event loop
_STREAMED = 2**20  # a larger body is written piece by piece


class Attempt:
    """How one request was made: the last dialled address, its connection, whether the guard refused."""

    __slots__ = ("address", "connection", "refused")

    def __init__(self) -> None:
        self.address: str | None = None
        self.connection: asyncio.Transport | None = None
        self.refused: NotAllowed | None = None


ATTEMPT: ContextVar[Attempt] = ContextVar("holdfast_egress_attempt")


class HeadTooLarge(Exception):
    """The headers of a reply exceed the limit."""


class TooManyInterim(Exception):
    """The server keeps sending 1xx replies."""


class _Guarded(AbstractResolver):
    """Resolves a name once and checks all its addresses: one bad address refuses the name."""

    def __init__(self, egress: Egress, resolve: Resolver) -> None:
        self._egress, self._resolve = egress, resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolve(host, port)
        vetted = dict.fromkeys(_vetted(address, self._egress) for address in found)
        if not vetted:
            raise OSError("the name has no address")
        return [_result(host, address, port) for address in list(vetted)[:MOST_ADDRESSES]]

    async def close(self) -> None: ...


def _result(host: str, address: Address, port: int) -> ResolveResult:
    return ResolveResult(
        hostname=host,
        host=str(address),
        port=port,
        family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
        proto=0,
        flags=socket.AI_NUMERICHOST,
    )


def _vetted(address: str, egress: Egress) -> Address:
    try:
        return vet(address, egress)
    except NotAllowed as error:
        attempt = ATTEMPT.get()
        attempt.address, attempt.refused = address, error
        raise


class _Response(aiohttp.ClientResponse):
    """Notes the peer's address; later the connection may serve another request. Of 1xx replies it reads a few."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        attempt = ATTEMPT.get()
        attempt.connection = connection.transport
        peer = connection.transport.get_extra_info("peername") if connection.transport is not None else None
        if peer:
            attempt.address = peer[0]
        protocol, left = connection.protocol, MOST_INTERIM + 1
        read = protocol.read

        async def counted() -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise TooManyInterim
            return await read()

        protocol.read = counted
        try:
            return await super().start(connection)
        finally:
            del protocol.read


class Line:
    """The connections of one policy. Each policy has separate connections, so none is used under a policy that would
    refuse it."""

    def __init__(self, egress: Egress, resolve: Resolver) -> None:
        self.egress = egress
        self.busy = 0
        self.target = functools.lru_cache(MOST_TARGETS)(functools.partial(parse, egress=egress))
        self._attempts: set[Attempt] = set()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        connector = aiohttp.TCPConnector(
            resolver=None if egress.proxy else _Guarded(egress, resolve),
            socket_factory=self._plain if egress.proxy else self._vetted,
            ssl=_tls(egress),
            use_dns_cache=False,
            limit=0,  # the caller bounds how much: a full pool would let one slow host delay all
            keepalive_timeout=KEEP_ALIVE,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            response_class=_Response,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=egress.connect_timeout, ceil_threshold=1e9),
            trust_env=False,
            auto_decompress=False,
            read_bufsize=MOST_BODY,
            max_line_size=8190,
            max_field_size=8190,
            max_headers=128,
        )

    def _plain(self, info: Any) -> socket.socket:
        family, kind, protocol, _, address = info
        ATTEMPT.get().address = address[0]
        made = socket.socket(family, kind, protocol)
        # Data that arrive at once are parsed at once, and nothing else happens meanwhile.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MOST_BODY)
        self._sockets.add(made)
        return made

    def _vetted(self, info: Any) -> socket.socket:
        _vetted(info[4][0], self.egress)
        return self._plain(info)

    async def request(
        self, method: str, target: Target, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and the beginning of the body. Raises every error."""
        sent = {"User-Agent": "holdfast", "Accept-Encoding": "identity", **headers}
        if len(self._sockets) > MOST_KEPT:
            sent["Connection"] = "close"
        attempt = ATTEMPT.get()
        attempt.connection = None
        self._attempts.add(attempt)
        try:
            response = await self._session.request(
                method,
                URL(target.url, encoded=True),
                data=body if len(body) < _STREAMED else io.BytesIO(body),
                headers=sent,
                allow_redirects=False,
                proxy=self.egress.proxy,
            )
            try:
                found = (response.status, _head(response), await _beginning(response.content))
                if (
                    response.connection is None
                ):  # read to its end and returned to the pool: another request may have it by now
                    attempt.connection = None
                return found
            finally:
                response.close()
        finally:
            self._attempts.discard(attempt)
            if attempt.connection is not None:
                attempt.connection.abort()  # close() would wait for the server to read the request

    async def close(self) -> None:
        for attempt in self._attempts:
            if attempt.connection is not None:
                attempt.connection.abort()
        await self._session.close()


def _head(response: aiohttp.ClientResponse) -> dict[str, str]:
    if sum(len(name) + len(value) for name, value in response.raw_headers) > MOST_HEAD:
        raise HeadTooLarge
    found: dict[str, str] = {}
    for spelled, value in response.headers.items():
        name = spelled.lower()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


async def _beginning(content: aiohttp.StreamReader) -> bytes:
    found = bytearray()
    while len(found) < MOST_BODY and (chunk := await content.read(MOST_BODY - len(found))):
        found += chunk
    return bytes(found)


def _tls(egress: Egress) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if egress.ca_file is not None:
        context.load_verify_locations(cafile=egress.ca_file)
    return context


_MEANING: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Kind, str | None], ...] = (
    (HeadTooLarge, "too_large", f"the headers of the reply are more than {MOST_HEAD} bytes"),
    (TooManyInterim, "protocol", f"more than {MOST_INTERIM} replies of 1xx, and none that counts"),
    ((aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError, ssl.SSLError), "tls", None),
    (aiohttp.ClientConnectorDNSError, "dns", None),
    (aiohttp.ClientConnectorError, "connect", None),
    (aiohttp.ConnectionTimeoutError, "timeout", "there was no connection in time"),
    (TimeoutError, "timeout", "there was no whole reply in time"),
    (aiohttp.ServerDisconnectedError, "protocol", "the server closed the connection before a whole reply"),
)


def meaning(error: Exception) -> tuple[Kind, str]:
    """The failure for an error, with a text for operators. The texts of aiohttp contain whole URLs, which may be secrets."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        refused = error.status in (403, 407)
        return "refused_address" if refused else "connect", f"the proxy replied {error.status}"
    if isinstance(error, aiohttp.ClientResponseError):
        if error.message.startswith(("Got more than", "Too many headers")):
            return "too_large", "a line of the head of the reply is too long, or it has too many lines"
        return "protocol", error.message.split("\n")[0][:200]
    for classes, kind, text in _MEANING:
        if isinstance(error, classes):
            return kind, text or _reason(error)
    number = getattr(error, "errno", None)
    return "protocol", f"{type(error).__name__}: {os.strerror(number)}" if number else type(error).__name__


def _reason(error: Exception) -> str:
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
    return str(getattr(inner, "strerror", None) or inner).split("\n")[0][:200]
