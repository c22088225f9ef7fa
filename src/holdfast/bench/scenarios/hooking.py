"""Webhooks of `boundaries`: beside the bare client, and beside an endpoint that is dead."""

import asyncio
import contextlib
import functools
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg

from ...app import Holdfast
from ...egress import Client, Egress, Reply
from ...errors import HoldfastError
from ...runtime.gc_tuning import tuned_gc
from ...store.pause import pause_queue, resume_queue
from ...store.queues import create_queue
from .. import brokers
from ..context import Bench
from .events import working

AT_ONCE = 50  # requests
ENDPOINTS = 10
GOOD = 99  # endpoints beside the dead one
FEW = 9  # with --quick
SLOW = 0.02  # seconds that the slow receiver takes
QUEUE = "webhooks"
BODY = b'{"type":"order.to0","timestamp":"2026-01-01T00:00:00.000000Z","data":{"cents": 995, "order_id": 1}}'
KNOWN = "SELECT count(*) FROM holdfast.subscriptions"
PENDING = "SELECT count(*) FROM holdfast.webhook_deliveries"
SENT = "SELECT count(*) FROM holdfast.webhook_deliveries WHERE status = 'delivered'"
DELIVERED = """SELECT CASE WHEN EXISTS (SELECT FROM holdfast.webhook_deliveries WHERE status = 'pending')
    OR EXISTS (SELECT FROM holdfast.work WHERE queue = 'webhooks') THEN 0
ELSE (SELECT count(*) FROM holdfast.webhook_deliveries WHERE status = 'delivered') END"""
GOOD_ONES = "SELECT count(*) FROM holdfast.webhook_deliveries WHERE status = 'delivered' AND event_type <> 'order.dead'"

# A request below /dead gets no reply. /seen returns how long the others took since `at` of their data, in seconds.
RECEIVER = """
import asyncio, json, sys, time
port, wait = int(sys.argv[1]), float(sys.argv[2])
REPLY = b"HTTP/1.1 204 No Content\\r\\n\\r\\n"
seen = []
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            now = time.time()
            path = head.split(b" ", 2)[1]
            length = int(head.lower().split(b"content-length:")[1].split(b"\\r\\n")[0])
            body = await reader.readexactly(length)
            if path.startswith(b"/dead"):
                await asyncio.sleep(3600)
            if path.startswith(b"/seen"):
                found = json.dumps(seen).encode()
                writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(found) + found)
                continue
            if path.startswith(b"/good"):
                seen.append(now - json.loads(body)["data"]["at"])
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
    if importlib.util.find_spec("aiohttp") is None:
        bench.say("boundaries: aiohttp is not installed (extra webhooks), webhooks are not measured")
        return
    for name, wait in (("webhooks-20ms", SLOW), ("webhooks-instant", 0.0)):
        delivering(bench, name, wait)
    beside_dead(bench)


@contextlib.contextmanager
def receiver(wait: float) -> Any:
    """The port of a receiver, and an Egress that allows it."""
    port = brokers.free_port()
    with brokers.started([sys.executable, "-I", "-c", RECEIVER, str(port), str(wait)], port):
        yield port, Egress(ports=[port], allow_http=True, allow_networks=["127.0.0.1/32"])


def delivering(bench: Bench, name: str, wait: float) -> None:
    count = max(bench.sizes.jobs // 20, 200)
    with receiver(wait) as (port, egress):
        with tuned_gc():  # as a worker's own process has it
            bare = asyncio.run(send_bare(egress, port, count))
        with bench.database() as dsn, tuned_gc():
            fanned, delivered = asyncio.run(deliver(dsn, egress, port, count))
    bench.add("boundaries", name, "requests/s", delivered)
    bench.add("boundaries", f"{name}-bare", "requests/s", bare)
    bench.say(f"boundaries {name}: {delivered:,.0f} requests/s, bare client {bare:,.0f}")
    if wait == 0:
        bench.add("boundaries", "webhooks-fan-out", "events/s", fanned)
        bench.say(f"boundaries webhooks: {fanned:,.0f} events/s become deliveries")


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


@contextlib.asynccontextmanager
async def hooked(
    dsn: str, egress: Egress
) -> AsyncIterator[tuple[Holdfast, Any, psycopg.AsyncConnection[Any]]]:
    async with (
        Holdfast(dsn) as app,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
    ):
        hooks = app.webhooks(on=["order.*"], tenant=lambda event: "bench", egress=egress)
        for name, rules in app.tasks.queue_rules().items():
            await app.database.arun(functools.partial(create_queue, name, rules=rules))
        yield app, hooks, conn


async def deliver(dsn: str, egress: Egress, port: int, count: int) -> tuple[float, float]:
    """How many events become deliveries in a second, from the publish call on, and how many deliveries are then sent and
    settled in a second, from the first of them on. Ten endpoints, one receiver; the queue is paused until all deliveries are
    there, so that the worker does nothing else while it sends, as the bare client does nothing else."""
    async with hooked(dsn, egress) as (app, hooks, conn):
        for n in range(ENDPOINTS):
            url = f"http://127.0.0.1:{port}/{n}"
            await hooks.endpoints.acreate(
                tenant="bench", url=url, events=[f"order.to{n}"], concurrency=AT_ONCE
            )
        await app.database.arun(lambda: pause_queue(QUEUE, "bench"))
        async with working(app, AT_ONCE):
            await reached(conn, KNOWN, 1)  # it begins with what is published from then on
            began = time.perf_counter()
            orders = ((f"order.to{n % ENDPOINTS}", {"order_id": n, "cents": 995}) for n in range(count))
            await app.apublish_many(orders)
            await reached(conn, PENDING, count)
            fanned = count / (time.perf_counter() - began)
            await app.database.arun(lambda: resume_queue(QUEUE))
            first = await reached(conn, SENT, 1)
            began = time.perf_counter()
            await reached(conn, DELIVERED, count)
            return fanned, (count - first) / (time.perf_counter() - began)


async def reached(conn: psycopg.AsyncConnection[Any], query: str, count: int) -> int:
    for _ in range(30_000):
        row = await (await conn.execute(query.encode())).fetchone()
        if row and row[0] >= count:
            return int(row[0])
        await asyncio.sleep(0.02)
    raise HoldfastError(f"not {count} within ten minutes: {query}")


# Beside a dead endpoint -----------------------------------------------------------------------------------------------


def beside_dead(bench: Bench) -> None:
    """How long an event takes from its publish call to a good endpoint, beside a dead one with many waiting, and without."""
    waiting = max(bench.sizes.jobs // 10, 50)
    count = max(int(bench.sizes.seconds * 100), 50)
    found = {}
    for name, dead in (("alone", 0), ("beside dead", waiting)):
        with receiver(0.0) as (port, egress), bench.database() as dsn:
            good = FEW if bench.quick else GOOD
            took = sorted(asyncio.run(good_ones(dsn, egress, port, count, good, dead)))
        found[name] = p99 = took[int(len(took) * 0.99)] * 1000
        bench.add("boundaries", f"webhook {name} p50", "ms", statistics.median(took) * 1000)
        bench.add("boundaries", f"webhook {name} p99", "ms", p99)
    bench.say(
        f"boundaries, a dead endpoint: p99 of the others {found['beside dead']:.0f} ms, alone {found['alone']:.0f}"
    )


async def good_ones(dsn: str, egress: Egress, port: int, count: int, good: int, dead: int) -> list[float]:
    """Seconds of `count` events to good endpoints, less than 100 a second, while `dead` wait for one that never replies."""
    async with hooked(dsn, egress) as (app, hooks, conn):
        for n in range(good):
            await hooks.endpoints.acreate(
                tenant="bench", url=f"http://127.0.0.1:{port}/good/{n}", events=[f"order.to{n}"]
            )
        await hooks.endpoints.acreate(
            tenant="bench", url=f"http://127.0.0.1:{port}/dead", events=["order.dead"]
        )
        async with working(app, AT_ONCE):
            await reached(conn, KNOWN, 1)
            if dead:
                await app.apublish_many(("order.dead", {"order_id": n}) for n in range(dead))
                await reached(conn, PENDING, dead)
            for n in range(count):
                await app.apublish(f"order.to{n % good}", {"order_id": n, "at": time.time()})
                await asyncio.sleep(0.01)
            await reached(conn, GOOD_ONES, count)
        async with Client(egress) as client:
            reply = await client.send(f"http://127.0.0.1:{port}/seen", b"", {})
        assert isinstance(reply, Reply), reply
        seen: list[float] = json.loads(reply.body)
        return seen
