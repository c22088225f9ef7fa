"""The server behind the health port, against clients that do not behave."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import await_until

from holdfast import telemetry
from holdfast.observe import server as module
from holdfast.observe.server import MOST_BYTES, MOST_CONNECTIONS, Reply, Server, listen

GARBAGE = [
    b"\r\n\r\n",
    b"hello\r\n\r\n",
    b"GET /ok\r\n\r\n",
    b"GET /ok HTTP/9.9\r\n\r\n",
    b"get /ok HTTP/1.1\r\n\r\n",
    b"GET  /ok HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # somebody speaks TLS
    b"\xff\xfe\x00\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


def _raise(_: str) -> Reply:
    raise LookupError("what a route may do")


class Served:
    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port

    async def send(self, request: bytes) -> bytes:
        """Everything that comes back before the server closes; nothing when it cut the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            async with asyncio.timeout(10):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.transport.abort()

    async def get(
        self, path: str = "/ok", method: str = "GET", headers: str = ""
    ) -> tuple[int, bytes, bytes]:
        answer = await self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), head, body

    def is_idle(self) -> bool:
        return not self.server._open


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    routes = {
        "/ok": lambda accept: Reply(200, f"fine {accept}".encode()),
        "/big": lambda _: Reply(200, b"x" * 20_000_000),
        "/raises": _raise,
    }
    sock = listen("127.0.0.1", 0)
    server = Server(routes)
    await server.start(sock)
    yield Served(server, sock.getsockname()[1])
    await server.close()


async def test_an_answer_has_its_type_and_length_and_the_connection_closes(served: Served) -> None:
    status, head, body = await served.get(headers="Accept: text/plain\r\n")
    assert (status, body) == (200, b"fine text/plain")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    assert {"Content-Length: 15", "Content-Type: text/plain; charset=utf-8", "Connection: close"} < set(lines)


async def test_head_is_get_without_the_body(served: Served) -> None:
    _, head, body = await served.get()
    _, bare, nothing = await served.get(method="HEAD")
    assert (bare.split(b"\r\n")[2:], nothing) == (head.split(b"\r\n")[2:], b"")
    assert body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
async def test_nothing_can_be_changed(served: Served, method: str) -> None:
    status, head, _ = await served.get(method=method)
    assert status == 405
    assert b"\r\nAllow: GET, HEAD" in head


async def test_paths(served: Served) -> None:
    assert (await served.get("/ok?verbose=1"))[0] == 200
    status, _, body = await served.get("/etc/passwd")
    assert (status, body) == (404, b"There is: /ok /big /raises\n")


@pytest.mark.parametrize("request_", GARBAGE, ids=repr)
async def test_garbage_is_a_bad_request(
    served: Served, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = await served.send(request_)
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert (await served.get())[0] == 200
    assert [r for r in caplog.records if r.levelno >= logging.WARNING or r.exc_info] == []


async def test_a_request_that_is_too_long_is_refused_unread(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for size in (MOST_BYTES * 2, 5_000_000):
        answer = await served.send(b"GET /ok HTTP/1.1\r\nX: " + b"x" * size + b"\r\n\r\n")
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")  # cut while it still sent, or told
    assert (await served.get())[0] == 200
    assert [r for r in caplog.records if r.levelno >= logging.WARNING or r.exc_info] == []


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_whatever_is_sent_it_answers_the_next_one(data: bytes) -> None:
    async def main() -> None:
        sock = listen("127.0.0.1", 0)
        server = Server({"/ok": lambda _: Reply(200, b"fine")})
        await server.start(sock)
        try:
            served = Served(server, sock.getsockname()[1])
            await served.send(data + b"\r\n\r\n")
            assert (await served.get())[2] == b"fine"
        finally:
            await server.close()

    asyncio.run(main())


@pytest.mark.parametrize("request_", [b"", b"GET /ok HT", b"GET /ok HTTP/1.1\r\nHost: x\r\n"], ids=repr)
async def test_a_client_that_does_not_finish_its_request_is_cut(
    served: Served, request_: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    assert await served.send(request_) == b""
    await await_until(served.is_idle, "the connection is forgotten")


async def test_a_client_that_sends_for_ever_is_cut(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)

    async def drip() -> None:
        while not reader.at_eof():
            writer.write(b"X")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    await await_until(served.is_idle, "the connection is cut", 5)
    dripping.cancel()
    writer.transport.abort()


async def test_a_client_that_does_not_read_is_cut(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        await await_until(lambda: not served.is_idle(), "it is being answered")
        await await_until(served.is_idle, "it is cut", 5)


async def test_a_crowd_that_says_nothing_keeps_no_probe_out(served: Served) -> None:
    crowd = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(MOST_CONNECTIONS + 10)]
    try:
        for _ in range(5):
            assert (await served.get())[0] == 200
        assert len(served.server._open) <= MOST_CONNECTIONS
        first, _ = crowd[0]
        assert await first.read() == b""  # the oldest had to go
    finally:
        for _, writer in crowd:
            writer.transport.abort()


async def test_a_route_that_raises_is_an_answer_and_one_event(
    served: Served, events: list[telemetry.Event]
) -> None:
    assert (await served.get("/raises"))[0] == 500
    (said,) = [e for e in events if e.name == "health.failed"]
    assert said.fields == {"path": "/raises", "error": "LookupError: what a route may do"}
    assert (await served.get())[0] == 200


async def test_closing_waits_for_nobody() -> None:
    sock = listen("127.0.0.1", 0)
    server = Server({})
    await server.start(sock)
    reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1])
    await await_until(lambda: server._open, "accepted")
    await server.close()
    assert not server._open
    writer.transport.abort()
    del reader


async def test_a_flood_leaves_no_connection_behind(served: Served) -> None:
    """All of them are accepted in one turn of the loop, before any of their tasks has begun."""
    clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(MOST_CONNECTIONS + 30)]
    try:
        await await_until(
            lambda: 0 < len(served.server._open) <= MOST_CONNECTIONS, "no more than it may have"
        )
        cut = clients[0]
        cut.setblocking(False)
        await await_until(lambda: _is_cut(cut), "the oldest is cut")
        assert (await served.get())[0] == 200
    finally:
        for client in clients:
            client.close()
    await await_until(served.is_idle, "nothing is left")


def _is_cut(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
