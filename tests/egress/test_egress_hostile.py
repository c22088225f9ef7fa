"""Servers that do their worst. Each of them is an outcome, in time, and nothing is left behind."""

import asyncio
import contextlib
import os
import random
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.conftest import await_until
from tests.egress.support import NAME, OK, PUBLIC, Site, plain, post, server_tls, serving, zone

from holdfast.egress import Client, Reply, SendFailed
from holdfast.egress.wire import MOST_INTERIM

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Site], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\n"
FOREVER = 10**9


def tasks_and_files() -> tuple[int, int]:
    return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))


@contextlib.asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    before = tasks_and_files()
    yield
    await await_until(
        lambda: tasks_and_files() <= before, f"{tasks_and_files()} tasks and files, {before} before"
    )


async def no_connection(client: Client) -> None:
    """The server holds on, and all of this end's sockets are closed all the same."""
    line = client._line
    assert line is not None
    await await_until(lambda: not any(one.fileno() >= 0 for one in list(line._sockets)), "an open socket")


def stalls(*parts: bytes) -> Serve:
    """Sends some bytes after the request, and then nothing for ever."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
        await asyncio.sleep(FOREVER)

    return serve


def repeats(start: bytes, part: bytes, pause: float = 0.0) -> Serve:
    """Sends the same bytes again and again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(start)
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)

    return serve


def closes(data: bytes, *, reset: bool = False, before: bool = False) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> None:
        if not before:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
        writer.write(data)
        await writer.drain()
        if reset:
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            writer.transport.abort()
        else:
            writer.close()
            await writer.wait_closed()

    return serve


async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> None:
    await asyncio.sleep(FOREVER)


CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
KINDS: dict[str, tuple[Serve, str]] = {
    "never reads": (never_reads, "timeout"),
    "says nothing": (stalls(), "timeout"),
    "stalls in the status": (stalls(b"HTTP/1.1 2"), "timeout"),
    "stalls in a header": (stalls(HEAD, b"content-le"), "timeout"),
    "stalls behind a header": (stalls(HEAD, b"content-length: 5\r\n"), "timeout"),
    "stalls before the body": (stalls(HEAD, b"content-length: 5\r\n\r\n"), "timeout"),
    "stalls in the body": (stalls(HEAD, b"content-length: 5\r\n\r\nab"), "timeout"),
    "stalls before a chunk": (stalls(CHUNKED), "timeout"),
    "stalls in the size of a chunk": (stalls(CHUNKED, b"1"), "timeout"),
    "stalls in a chunk": (stalls(CHUNKED, b"5\r\nab"), "timeout"),
    "stalls before the last chunk": (stalls(CHUNKED, b"2\r\nab\r\n"), "timeout"),
    "stalls in a body without length": (stalls(HEAD, b"\r\nab"), "timeout"),
    "trickles the status": (repeats(b"HTTP/1.1 200 ", b"x", 0.05), "timeout"),
    "trickles headers": (repeats(HEAD + b"x: ", b"y", 0.05), "timeout"),
    "trickles the body": (repeats(HEAD + b"\r\n", b"y", 0.05), "timeout"),
    "trickles chunks": (repeats(CHUNKED, b"1\r\na\r\n", 0.05), "timeout"),
    "endless 100": (repeats(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 10, 0.001), "protocol"),
    "endless 103": (repeats(b"", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n", 0.001), "protocol"),
    "endless status": (repeats(b"HTTP/1.1 200 ", b"x" * 1000), "too_large"),
    "endless header": (repeats(HEAD + b"x: ", b"y" * 1000), "too_large"),
    "endless name of a header": (repeats(HEAD, b"y" * 1000), "too_large"),
    "endless headers": (repeats(HEAD, b"x: y\r\n" * 100), "too_large"),
    "large headers": (
        closes(HEAD + b"".join(b"x: %s\r\n" % (b"y" * 8000) for _ in range(100)) + b"\r\n"),
        "too_large",
    ),
    "closes at once": (closes(b"", before=True), "protocol"),
    "closes after the request": (closes(b""), "protocol"),
    "closes in the head": (closes(HEAD + b"content-le"), "protocol"),
    "closes in the body": (closes(HEAD + b"content-length: 5\r\n\r\nab"), "protocol"),
    "closes in a chunk": (closes(CHUNKED + b"5\r\nab"), "protocol"),
    "resets at once": (closes(b"", reset=True, before=True), "protocol"),
    "resets after the request": (closes(b"", reset=True), "protocol"),
    "resets in the head": (closes(HEAD + b"content-le", reset=True), "protocol"),
    "resets in the body": (closes(HEAD + b"content-length: 5\r\n\r\nab", reset=True), "protocol"),
    "bad chunk": (closes(CHUNKED + b"zz\r\nab\r\n0\r\n\r\n"), "protocol"),
    "bad end of a chunk": (closes(CHUNKED + b"2\r\nabcd0\r\n\r\n"), "protocol"),
    "negative chunk": (closes(CHUNKED + b"-2\r\nab\r\n0\r\n\r\n"), "protocol"),
    "huge chunk": (closes(CHUNKED + b"f" * 40 + b"\r\nab"), "protocol"),
    "negative length": (closes(HEAD + b"content-length: -5\r\n\r\n"), "protocol"),
    "odd length": (closes(HEAD + b"content-length: five\r\n\r\n"), "protocol"),
    "two lengths": (closes(HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab"), "protocol"),
    "length and chunks": (
        closes(CHUNKED[:-2] + b"content-length: 2\r\n\r\n2\r\nab\r\n0\r\n\r\n"),
        "protocol",
    ),
    "not HTTP": (closes(b"SSH-2.0-OpenSSH_9.2\r\n"), "protocol"),
    "zeros": (closes(bytes(1000)), "protocol"),
    "HTTP/2": (closes(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"), "protocol"),
    "status of one digit": (closes(b"HTTP/1.1 2 x\r\n\r\n"), "protocol"),
    "zero in a header": (closes(HEAD + b"x: \x00\r\n\r\n"), "protocol"),
}


async def test_a_server_that_misbehaves_is_an_outcome() -> None:
    async with nothing_left(), contextlib.AsyncExitStack() as stack:
        sites = [await stack.enter_async_context(serving(serve)) for serve, _ in KINDS.values()]
        egress = plain(1, ports=[site.port for site in sites], timeout=2, connect_timeout=2)
        async with Client(egress, resolver=zone()) as client:
            async with asyncio.timeout(60):
                outcomes = await asyncio.gather(
                    *(post(client, f"http://{NAME}:{site.port}/") for site in sites)
                )
            await no_connection(client)
        found = {
            name: outcome.kind if isinstance(outcome, SendFailed) else outcome
            for name, outcome in zip(KINDS, outcomes, strict=True)
        }
        wanted = {name: kind for name, (_, kind) in KINDS.items()}
        # Under load a request may run into its time before the server has done its worst.
        assert {name: kind for name, kind in found.items() if kind not in (wanted[name], "timeout")} == {}
        assert all(isinstance(outcome, SendFailed) and outcome.unknown for outcome in outcomes)


@pytest.mark.parametrize("name", [name for name, (_, kind) in KINDS.items() if kind != "timeout"])
async def test_what_is_not_a_matter_of_time_is_called_what_it_is(name: str) -> None:
    serve, kind = KINDS[name]
    async with serving(serve) as site, Client(plain(site.port, timeout=60), resolver=zone()) as client:
        outcome = await post(client, f"http://{NAME}:{site.port}/")
        assert isinstance(outcome, SendFailed)
        assert (outcome.kind, outcome.address) == (kind, PUBLIC)
        assert str(site.port) not in outcome.detail


async def test_a_few_replies_before_the_reply_are_passed_and_no_more() -> None:
    """Each costs time of the event loop, and a server that sends them by the thousand would hold up all others."""
    before = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    for count, passed in ((1, True), (MOST_INTERIM, True), (MOST_INTERIM + 1, False), (5000, False)):
        async with (
            serving(before * count + OK) as site,
            Client(plain(site.port, timeout=60), resolver=zone()) as client,
        ):
            outcome = await post(client, f"http://{NAME}:{site.port}/")
            if not passed:
                assert isinstance(outcome, SendFailed)
                assert outcome.detail == "more than 16 replies of 1xx, and none that counts"
                continue
            again = await post(client, f"http://{NAME}:{site.port}/")
            assert isinstance(outcome, Reply)
            assert isinstance(again, Reply)
            assert (outcome.status, outcome.body, again.status) == (200, b"ok", 200)
            assert site.connections == 1, "the connection is used again"


async def test_a_gigabyte_is_read_to_64_kib() -> None:
    sent = 0

    async def gigabyte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> None:
        nonlocal sent
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        writer.write(HEAD + (b"content-length: 1000000000\r\n\r\n" if b"POST /plain" in head else b"\r\n"))
        for _ in range(1000):
            writer.write(b"x" * 10**6)
            await writer.drain()
            sent += 10**6

    async with (
        nothing_left(),
        serving(gigabyte) as site,
        Client(plain(site.port, timeout=60), resolver=zone()) as client,
    ):
        for path in ("plain", "endless"):
            reply = await post(client, f"http://{NAME}:{site.port}/{path}")
            assert isinstance(reply, Reply), reply
            assert (reply.status, len(reply.body)) == (200, 65536)
        assert site.connections == 2
        assert sent < 100 * 10**6  # what sockets hold; the rest was never asked for


async def test_nothing_is_decompressed() -> None:
    bomb = zlib.compress(bytes(10**7), wbits=31)
    reply_ = HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb) + bomb
    async with serving(reply_) as site, Client(plain(site.port), resolver=zone()) as client:
        reply = await post(client, f"http://{NAME}:{site.port}/")
        assert isinstance(reply, Reply)
        assert reply.body == bomb


async def test_a_reply_before_the_body_was_sent_counts() -> None:
    """413, and the rest of the request is not read."""

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 x\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(FOREVER)

    async with (
        nothing_left(),
        serving(early) as site,
        Client(plain(site.port, timeout=60), resolver=zone()) as client,
    ):
        reply = await client.send(f"http://{NAME}:{site.port}/", bytes(30 * 10**6), {})
        assert isinstance(reply, Reply), reply
        assert reply.status == 413
        await no_connection(client)


async def test_a_large_body_that_nobody_reads_ends_in_time() -> None:
    async with (
        nothing_left(),
        serving(never_reads) as site,
        Client(plain(site.port, timeout=1, connect_timeout=1), resolver=zone()) as client,
    ):
        outcome = await client.send(f"http://{NAME}:{site.port}/", bytes(30 * 10**6), {})
        assert isinstance(outcome, SendFailed)
        assert outcome.kind == "timeout"
        await no_connection(client)


async def test_names_and_handshakes_that_hang_end_in_time() -> None:
    async def hangs(host: str, port: int) -> list[str]:
        await asyncio.sleep(FOREVER)
        return []

    _, authority = server_tls()
    async with nothing_left(), serving(never_reads) as site:
        egress = plain(site.port, connect_timeout=0.5, ca_file=authority)
        for resolver in (hangs, zone()):
            async with Client(egress, resolver=resolver) as client:
                outcome = await post(client, f"https://{NAME}:{site.port}/")
                assert isinstance(outcome, SendFailed)
                assert (outcome.kind, outcome.detail) == ("timeout", "there was no connection in time")


async def test_a_port_where_nobody_listens_and_one_where_nobody_accepts() -> None:
    with socket.socket() as full:
        full.bind((PUBLIC, 0))
        full.listen(0)
        port = full.getsockname()[1]
        async with (
            nothing_left(),
            Client(plain(port, timeout=1, connect_timeout=1), resolver=zone()) as client,
        ):
            outcomes = await asyncio.gather(*(post(client, f"http://{NAME}:{port}/") for _ in range(10)))
            assert {getattr(outcome, "kind", None) for outcome in outcomes} <= {"timeout", "connect"}
    async with Client(plain(port), resolver=zone()) as client:
        outcome = await post(client, f"http://{NAME}:{port}/")
        assert isinstance(outcome, SendFailed)
        assert outcome.kind == "connect"


async def test_any_bytes_are_an_outcome() -> None:
    """Replies with bytes changed, cut and doubled; every outcome is one of ours."""
    rng = random.Random(13)
    good = (
        HEAD + b"content-length: 2\r\nx: y\r\n\r\nok",
        CHUNKED + b"2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 307 x\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 204 x\r\n\r\n",
        b"HTTP/1.1 101 x\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nabc",
    )

    def changed() -> bytes:
        reply = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(reply))
            match rng.randrange(3):
                case 0:
                    reply[at] = rng.randrange(256)
                case 1:
                    del reply[at : at + rng.randrange(1, 5)]
                case _:
                    reply[at:at] = reply[at : at + 5] or b"\r\n"
            reply = reply or bytearray(b"x")
        return bytes(reply)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> None:
        await closes(changed())(reader, writer, site)

    async with (
        nothing_left(),
        serving(serve) as site,
        Client(plain(site.port, timeout=30), resolver=zone()) as client,
    ):
        for _ in range(20):
            outcomes = await asyncio.gather(
                *(post(client, f"http://{NAME}:{site.port}/", redirects=1) for _ in range(25))
            )
            assert all(isinstance(outcome, Reply | SendFailed) for outcome in outcomes)
    assert site.connections >= 500


@pytest.mark.parametrize("tls", [False, True])
async def test_a_request_is_cancelled_at_any_moment(tls: bool) -> None:
    """After each number of turns of the loop, until one request gets through."""
    context, authority = server_tls()
    async with (
        nothing_left(),
        serving(tls=context if tls else None) as site,
        Client(plain(site.port, ca_file=authority), resolver=zone()) as client,
    ):
        url = f"{'https' if tls else 'http'}://{NAME}:{site.port}/"
        done = 0
        for turns in range(1, 400):
            task = asyncio.create_task(post(client, url))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            try:
                assert isinstance(await task, Reply)
                done += 1
            except asyncio.CancelledError:
                pass
            if done >= 3:
                break
        assert isinstance(await post(client, url), Reply)


async def test_closing_the_client_ends_what_is_under_way() -> None:
    async with nothing_left(), serving(stalls()) as site:
        client = Client(plain(site.port, timeout=60), resolver=zone())
        await client.open()
        tasks = [asyncio.create_task(post(client, f"http://{NAME}:{site.port}/")) for _ in range(5)]
        await await_until(lambda: site.connections == 5, "five requests")
        large = f"http://{NAME}:{site.port}/large"
        tasks += [
            asyncio.create_task(client.send(large, bytes(30 * 10**6), {}))
        ]  # more than the server reads
        await await_until(lambda: site.connections == 6, "six requests")
        async with asyncio.timeout(60):
            await client.close()
            assert all(isinstance(outcome, SendFailed) for outcome in await asyncio.gather(*tasks))
