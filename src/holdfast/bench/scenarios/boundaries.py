"""`boundaries`: what leaves the database, each beside the same client with nothing around it.

A relay to NATS with order per key, over 1,000 keys and over 10, stands against the raw publish of the same client with the
same number of unconfirmed messages. Webhooks, with guard, signature and attempt rows, stand against the bare client: to a
receiver that takes 20 ms and to one that replies at once, 50 requests at a time. What is not installed is not measured, and
said.
"""

import asyncio
import contextlib
import functools
import importlib.util
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from ...app import Holdfast
from ...egress import Client, Egress, Reply
from ...errors import HoldfastError
from ...store.queues import create_queue
from ..context import Bench
from .events import working

STREAM = "BENCH"
WINDOW = 1000  # messages on their way
AT_ONCE = 50  # requests
ENDPOINTS = 10
SLOW = 0.02  # seconds that the slow receiver takes
BODY = b'{"type":"order.paid","timestamp":"2026-01-01T00:00:00Z","data":{"order_id":1,"cents":995}}'
KNOWN = "SELECT count(*) FROM holdfast.subscriptions"
DELIVERED = "SELECT count(*) FROM holdfast.webhook_deliveries WHERE status = 'delivered'"

RECEIVER = """
import asyncio, sys
port, wait = int(sys.argv[1]), float(sys.argv[2])
REPLY = b"HTTP/1.1 204 No Content\\r\\n\\r\\n"
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\\r\\n")[0])
            await reader.readexactly(length)
            if wait:
                await asyncio.sleep(wait)
            writer.write(REPLY)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()
asyncio.run(main())
"""


def run(bench: Bench) -> None:
    nats_server = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/bin")
    if nats_server is None or importlib.util.find_spec("nats") is None:
        bench.say("boundaries: nats-server or nats-py is not installed, relays are not measured")
    else:
        relaying(bench, nats_server)
    if importlib.util.find_spec("aiohttp") is None:
        bench.say("boundaries: aiohttp is not installed (holdfast[webhooks]), webhooks are not measured")
    else:
        for name, wait in (("webhooks-20ms", SLOW), ("webhooks-instant", 0.0)):
            delivering(bench, name, wait)


# Relays ---------------------------------------------------------------------------------------------------------------


def relaying(bench: Bench, program: str) -> None:
    count = max(bench.sizes.jobs // 5, 200)
    for keys in (1000, 10):
        with tempfile.TemporaryDirectory() as folder, started_nats(program, folder) as url:
            raw = asyncio.run(publish_raw(url, count, keys))
        with (
            tempfile.TemporaryDirectory() as folder,
            started_nats(program, folder) as url,
            bench.database() as dsn,
        ):
            relayed, idle = asyncio.run(relay(dsn, url, count, keys, bench.quick))
        bench.add("boundaries", f"nats-{keys}", "messages/s", relayed)
        bench.add("boundaries", f"nats-{keys}-raw", "messages/s", raw)
        bench.say(f"boundaries NATS, {keys} keys: {relayed:,.0f} messages/s, raw {raw:,.0f}")
        if keys == 1000:
            bench.add("boundaries", "publish to broker p50", "ms", idle)
            bench.say(f"boundaries publish to broker: p50 {idle:.1f} ms")


@contextlib.contextmanager
def started_nats(program: str, folder: str) -> Iterator[str]:
    port = free_port()
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder]
    with started(command, port):
        url = f"nats://127.0.0.1:{port}"
        asyncio.run(make_stream(url))
        yield url


async def make_stream(url: str) -> None:
    import nats

    client = await nats.connect(url)
    await client.jetstream().add_stream(name=STREAM, subjects=["bench.>"])
    await client.close()


async def publish_raw(url: str, count: int, keys: int) -> float:
    """Every message confirmed, WINDOW of them on their way, in no order."""
    import nats

    client = await nats.connect(url)
    js = client.jetstream(publish_async_max_pending=WINDOW)
    body = BODY + b" " * 200
    began = time.perf_counter()
    for n in range(count):
        await js.publish_async(f"bench.order.paid.{n % keys}", body, headers={"Nats-Msg-Id": str(n)})
    await js.publish_async_completed()
    took = time.perf_counter() - began
    await client.close()
    return count / took


async def relay(dsn: str, url: str, count: int, keys: int, quick: bool) -> tuple[float, float]:
    async with Holdfast(dsn) as app:
        sent = app.relay(
            "bench", f"{url}?stream={STREAM}", on=["order.*"], route="bench.{type}.{key}", start="start"
        )
        size = min(count, 2000)
        for start in range(0, count, size):
            part = range(start, min(start + size, count))
            await app.apublish_many(
                ("order.paid", {"order_id": n, "cents": 995, "note": "x" * 150}, f"{n % keys}") for n in part
            )
        began = time.perf_counter()
        async with working(app):
            await sent.aread_your_writes(count, timeout=600)
            took = time.perf_counter() - began
            return count / took, statistics.median(await arrivals(app, url, 10 if quick else 50))


async def arrivals(app: Holdfast, url: str, count: int) -> list[float]:
    """Milliseconds from the publish call until somebody who listens at the broker has the message, one at a time."""
    import nats

    client = await nats.connect(url)
    there = await client.subscribe("bench.>")
    await client.flush()
    took = []
    for n in range(count):
        await asyncio.sleep(0.1)
        began = time.perf_counter()
        await app.apublish("order.paid", {"order_id": n, "cents": 1}, key="idle")
        await there.next_msg(timeout=60)
        took.append((time.perf_counter() - began) * 1000)
    await client.close()
    return took


# Webhooks -------------------------------------------------------------------------------------------------------------


def delivering(bench: Bench, name: str, wait: float) -> None:
    count = max(bench.sizes.jobs // 20, 200)
    port = free_port()
    with started([sys.executable, "-I", "-c", RECEIVER, str(port), str(wait)], port):
        egress = Egress(ports=[port], allow_http=True, allow_networks=["127.0.0.1/32"])
        bare = asyncio.run(send_bare(egress, port, count))
        with bench.database() as dsn:
            delivered = asyncio.run(deliver(dsn, egress, port, count))
    bench.add("boundaries", name, "requests/s", delivered)
    bench.add("boundaries", f"{name}-bare", "requests/s", bare)
    bench.say(f"boundaries {name}: {delivered:,.0f} requests/s, bare client {bare:,.0f}")


async def send_bare(egress: Egress, port: int, count: int) -> float:
    """The same client with its guard, and nothing else."""
    left = iter(range(count))

    async def one() -> None:
        for _ in left:
            reply = await client.send(f"http://127.0.0.1:{port}/", BODY, {"content-type": "application/json"})
            assert isinstance(reply, Reply), reply

    async with Client(egress) as client:
        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(AT_ONCE)))
        return count / (time.perf_counter() - began)


async def deliver(dsn: str, egress: Egress, port: int, count: int) -> float:
    """From the first publish to the commit that says that the last one was delivered. Ten endpoints, one receiver."""
    async with (
        Holdfast(dsn) as app,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
    ):
        hooks = app.webhooks(on=["order.*"], tenant=lambda event: "bench", egress=egress)
        for name, rules in app.tasks.queue_rules().items():
            await app.database.arun(functools.partial(create_queue, name, rules=rules))
        for n in range(ENDPOINTS):
            url = f"http://127.0.0.1:{port}/{n}"
            await hooks.endpoints.acreate(
                tenant="bench", url=url, events=[f"order.to{n}"], concurrency=AT_ONCE
            )
        async with working(app, AT_ONCE):
            await reached(conn, KNOWN, 1)  # it begins with what is published from then on
            began = time.perf_counter()
            orders = ((f"order.to{n % ENDPOINTS}", {"order_id": n, "cents": 995}) for n in range(count))
            await app.apublish_many(orders)
            await reached(conn, DELIVERED, count)
            return count / (time.perf_counter() - began)


async def reached(conn: psycopg.AsyncConnection[Any], query: str, count: int) -> None:
    for _ in range(30_000):
        row = await (await conn.execute(query.encode())).fetchone()
        if row and row[0] >= count:
            return
        await asyncio.sleep(0.02)
    raise HoldfastError(f"not {count} within ten minutes: {query}")


# Processes ------------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def started(command: list[str], port: int) -> Iterator[None]:
    """A process that listens on the port, until the block ends."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None:
                raise HoldfastError(f"{command[0]} ended with {process.returncode} before it listened")
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait()
