"""A 2xx means that the job is committed, whatever dies around the commit: the server process, a backend, the database."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import psycopg
import pytest
from tests.conftest import await_until, wait_until, within
from tests.events.log_support import own_server
from tests.receiver.serving import app as served
from tests.receiver.serving import paid
from tests.receiver.support import SECRET, body_of, post, standard

from holdfast import Holdfast, ReceivedMessage, Receiver, Settings, StandardWebhooks
from holdfast.telemetry import Event
from holdfast.testing import Kit

ROOT = Path(__file__).parents[2]
END = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'holdfast'"
)


class Server:
    """uvicorn on a socket of its own."""

    def __init__(self, url: str, failpoints: str = "") -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.socket = f"{self.folder.name}/s"
        environment = {
            **os.environ,
            "HOLDFAST_DATABASE_URL": url,
            "HOLDFAST_FAILPOINTS": failpoints,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        }
        command = [
            sys.executable, "-m", "uvicorn", "tests.receiver.serving:asgi", "--uds", self.socket, "--log-level", "error",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, env=environment, cwd=ROOT)
        wait_until(lambda: self.process.poll() is not None or Path(self.socket).exists(), "it serves", 60)
        assert self.process.poll() is None

    def client(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=self.socket)
        return httpx.AsyncClient(transport=transport, base_url="http://receiver", timeout=within(60))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.kill()
        self.folder.cleanup()


@pytest.fixture
def serve(kit: Kit) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(failpoints: str = "") -> Server:
        servers.append(Server(kit.url, failpoints))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


async def send(client: httpx.AsyncClient, message_id: str) -> int:
    body = body_of(order_id=message_id)
    try:
        reply = await client.post("/", content=body, headers=standard(body, message_id))
    except httpx.TransportError:
        return 0
    return reply.status_code


def jobs(kit: Kit) -> dict[str, int]:
    """How many jobs each message became."""
    rows = kit.sql(
        "SELECT payload -> 'message' ->> 'id' AS id, count(*)::int AS n FROM holdfast.jobs GROUP BY 1"
    )
    return {row["id"]: row["n"] for row in rows}


async def test_a_server_that_is_killed_has_replied_to_what_is_committed(
    kit: Kit, serve: Callable[..., Server]
) -> None:
    server = serve()
    replies: dict[str, int] = {}

    async def sender(client: httpx.AsyncClient, n: int) -> None:
        for k in range(1000):
            message_id = f"m{n}-{k}"
            replies[message_id] = 0
            replies[message_id] = await send(client, message_id)
            if replies[message_id] == 0:
                return

    async with server.client() as client:
        senders = [asyncio.create_task(sender(client, n)) for n in range(10)]
        await await_until(lambda: sum(status == 202 for status in replies.values()) > 50, "it replies", 60)
        server.kill()
        await asyncio.gather(*senders)
    accepted = {message_id for message_id, status in replies.items() if status == 202}
    assert set(replies.values()) <= {0, 202}
    assert accepted <= jobs(kit).keys(), "a 2xx means that the job is there"
    async with serve().client() as client:  # the senders try again
        again = {message_id: await send(client, message_id) for message_id in replies}
    assert {again[message_id] for message_id in accepted} == {200}
    assert set(again.values()) <= {200, 202}
    assert jobs(kit) == dict.fromkeys(replies, 1)


async def test_a_server_that_is_killed_between_commit_and_reply_makes_no_second_job(
    kit: Kit, serve: Callable[..., Server]
) -> None:
    server = serve("received.committed=kill")
    async with server.client() as client:
        assert await send(client, "m1") == 0
    assert server.process.wait(within(20)) == -signal.SIGKILL
    assert jobs(kit) == {"m1": 1}
    async with serve().client() as client:
        assert await send(client, "m1") == 200
    assert jobs(kit) == {"m1": 1}


async def test_bodies_that_never_end_take_no_memory(kit: Kit, serve: Callable[..., Server]) -> None:
    server = serve()
    process = psutil.Process(server.process.pid)
    part = b"x" * 65_536
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 2**28:
            sent += len(part)
            yield part

    async with server.client() as client:
        assert await send(client, "m1") == 202
        before = process.memory_info().rss
        for _ in range(2):
            sent = 0
            try:
                reply = await client.post("/", content=endless(), headers=standard(b""))
                assert reply.status_code == 413
            except httpx.TransportError:
                pass  # the server closed the connection while we still sent
        slow = []
        for _ in range(200):  # those that send a byte and wait
            reader, writer = await asyncio.open_unix_connection(server.socket)
            writer.write(
                b"POST / HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 60000\r\n\r\n{"
            )
            await writer.drain()
            slow.append((reader, writer))
        assert await send(client, "m2") == 202, "nobody else waits for them"
        after = process.memory_info().rss
        for _, writer in slow:
            writer.close()
    assert after - before < 48 * 2**20
    assert jobs(kit) == {"m1": 1, "m2": 1}


async def test_a_connection_that_the_server_ends_costs_no_message(app: Holdfast, akit: Kit) -> None:
    @app.receive("shop", dict[str, Any], verify=StandardWebhooks(SECRET), patience=600)
    def paid(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    replies: dict[str, int] = {}
    ended = 0
    with psycopg.connect(akit.url, autocommit=True) as conn:
        for k in range(10):
            sent = {f"m{k}-{n}": body_of(n=n) for n in range(20)}
            tasks = [asyncio.create_task(post(paid.asgi, standard(b, i), b)) for i, b in sent.items()]
            for _ in range(k):  # a little later each time
                await asyncio.sleep(0)
            ended += len(conn.execute(END).fetchall())
            found = await asyncio.gather(*tasks)
            replies |= {i: reply.status for i, reply in zip(sent, found, strict=True)}
    assert ended, "there were connections to end"
    assert set(replies.values()) <= {200, 202, 503}
    assert {i for i, status in replies.items() if status != 503} <= jobs(akit).keys()
    for message_id in replies:
        body = body_of(n=int(message_id.partition("-")[2]))
        assert (await post(paid.asgi, standard(body, message_id), body)).status in (200, 202)
    assert jobs(akit) == dict.fromkeys(replies, 1)


@pytest.mark.slow
async def test_a_backend_that_is_killed_with_9_costs_no_message() -> None:
    with own_server(None, synchronous_commit="on") as server:
        url = server.dsn()
        served._use(url, Settings(connect_timeout=60.0))
        try:
            replies: dict[str, int] = {}
            for turn in range(3):
                with psycopg.connect(url) as victim, psycopg.connect(url, autocommit=True) as watch:
                    sent = {f"m{turn}-{n}": body_of(n=n) for n in range(20)}
                    tasks = [asyncio.create_task(post(paid.asgi, standard(b, i), b)) for i, b in sent.items()]
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    os.kill(victim.info.backend_pid, signal.SIGKILL)
                    await await_until(lambda: is_gone(watch), "the server ends every session", 60)
                    found = await asyncio.gather(*tasks)
                replies |= {i: reply.status for i, reply in zip(sent, found, strict=True)}
                await await_until(lambda: is_up(url), "the server has recovered", 60)
                with psycopg.connect(url) as conn:
                    rows = conn.execute("SELECT payload -> 'message' ->> 'id' FROM holdfast.work").fetchall()
                kept = [row[0] for row in rows]
                assert len(kept) == len(set(kept))
                assert {i for i, status in replies.items() if status in (200, 202)} <= set(kept)
            assert set(replies.values()) <= {200, 202, 503}
        finally:
            await served.database.aclose()


def is_gone(conn: psycopg.Connection[Any]) -> bool:
    try:
        conn.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def is_up(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def receiver_of(app: Holdfast, patience: float) -> Receiver[dict[str, Any]]:
    @app.receive("shop", dict[str, Any], verify=StandardWebhooks(SECRET), patience=patience)
    def paid(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    return paid


async def test_a_database_that_is_away_is_503_with_retry_after(events: list[Event]) -> None:
    app = Holdfast("postgresql://nobody@127.0.0.1:1/none", settings=Settings(connect_timeout=1.0))
    receiver = receiver_of(app, 0.2)
    body = body_of(n=1)
    reply = await post(receiver.asgi, standard(body), body)
    assert (reply.status, reply.headers["retry-after"], reply.text) == (503, "5", "not now: try again later")
    wrong = await post(receiver.asgi, standard(body), body + b" ")
    assert wrong.status == 401, "who is no sender learns nothing of the database"
    made = await asyncio.to_thread(receiver.accept, standard(body), body)
    assert (made.status, made.outcome, made.headers) == (503, "refused", {"retry-after": "5"})
    assert "received.unavailable" in [event.name for event in events]
    await app.database.aclose()
    app.close()


async def test_a_message_that_cannot_be_written_in_time_is_503_and_writes_nothing_later(
    app: Holdfast, akit: Kit
) -> None:
    receiver = receiver_of(app, 0.3)
    patient: Receiver[Any] = Receiver(
        receiver.task, receiver._binding, receiver._intake, receiver._verifier, 600.0
    )
    body = body_of(n=1)
    with psycopg.connect(akit.url) as conn:
        conn.execute("LOCK TABLE holdfast.received IN ACCESS EXCLUSIVE MODE")
        first, second = await asyncio.gather(
            post(receiver.asgi, standard(body, "m1"), body), post(receiver.asgi, standard(body, "m2"), body)
        )
        assert (first.status, second.status) == (503, 503)
    assert (await post(patient.asgi, standard(body, "m3"), body)).status == 202
    await await_until(lambda: "m3" in jobs(akit), "it is written")
    for message_id in ("m1", "m2"):
        assert (await post(patient.asgi, standard(body, message_id), body)).status in (200, 202)
    assert jobs(akit) == {"m1": 1, "m2": 1, "m3": 1}
