"""`web`: what the dashboard costs, and how quick it is at size.

Every page and list of the API is visited beside `history` finished jobs, `backlog` jobs that wait and as many runs: the time
of a visit is processor time, in the dashboard and in PostgreSQL, which equals wall time on a machine with nothing
else to do. An open overview stands beside a drain, and its processor time is compared with that of the drain. A hundred
streams stand beside one. Acts and the first load of the overview stand beside a page of a bare Starlette app.
"""

import asyncio
import importlib.util
import json
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from ..context import Bench
from ..crew import crew, drain, warm
from ..crowd import fill
from ..fill import Load
from ..processor import children_of, postmaster_of

STREAMS = 100
DRAIN = 2.0  # cores that a drain by one process keeps busy: its own, and one of the server
TRIES = 3
LOOKS = 20  # over which one is measured, at least: some queries are made every twenty seconds
BATCH = 20  # acts of a kind


def run(bench: Bench) -> None:
    missing = [name for name in ("starlette", "jinja2", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        bench.say(f"web: {missing[0]} is not installed, the dashboard is not measured")
        return
    visited(bench)
    beside_drain(bench)
    streams(bench)
    acts(bench)


def _times(bench: Bench, usual: int) -> int:
    """How often something is measured: once where figures only have to be there."""
    return 1 if bench.quick else usual


def visited(bench: Bench) -> None:
    if not bench.wants("pages"):
        return
    from ..visits import first_load, visits

    url = bench.kept("web", lambda url: prepare(bench, url))
    found = asyncio.run(visits(url, _times(bench, TRIES)))
    failed = [one.path for one in found if one.status >= 400]
    if failed:
        raise RuntimeError(f"{len(failed)} pages failed, the first is {failed[0]}")
    pages = [one for one in found if not one.path.startswith(("/api/", "/find"))]
    for one in found:
        bench.add("web", f"GET {one.name}", "ms", one.busy * 1000)
    slowest, largest = max(found, key=lambda one: one.busy), max(pages, key=first_load)
    bench.add("web", "slowest page", "ms", slowest.busy * 1000)
    bench.add("web", "largest first load", "kB", first_load(largest) / 1000)
    bench.say(
        f"web: {len(found)} pages; the slowest is {slowest.path} with {slowest.busy * 1000:.0f} ms, the largest "
        f"{largest.path} with {first_load(largest) / 1000:.0f} kB"
    )


def prepare(bench: Bench, url: str) -> None:
    sizes = bench.sizes
    bench.say(f"web: making {sizes.history:,} finished jobs, {sizes.backlog:,} that wait and as many runs")
    fill(url, archived=sizes.history, due=sizes.backlog, runs=sizes.backlog)
    bench.server.checkpoint()


def beside_drain(bench: Bench) -> None:
    """The same drain with and without an open overview, each first in every other round. A hundredth is less than rounds
    differ by, so the figure is the processor time of a query divided by that of a drain in the same time."""
    if not bench.wants("overview"):
        return
    from ..tabs import open_tabs

    load = Load(bench.sizes.jobs)
    rates, each, part = {}, 0.0, 0.0
    with bench.database() as url, crew(url, queues=["inbox"], concurrency=bench.sizes.concurrency) as workers:
        warm(workers, load)
        for with_overview in (True, False) if bench.round % 2 else (False, True):
            if not with_overview:
                rates["without"] = drain(workers, load).rate
                continue
            with open_tabs(url, 1) as tabs:
                before, looks, began = tabs.used(), tabs.looks, time.monotonic()
                rates["with"] = drain(workers, load).rate
                while tabs.looks - looks < _times(bench, LOOKS):
                    drain(workers, load)
                used = tabs.used() - before
                each, part = used / (tabs.looks - looks), used / (time.monotonic() - began)
    bench.add("web", "drain", "jobs/s", rates["without"])
    bench.add("web", "drain beside an overview", "jobs/s", rates["with"])
    bench.add("web", "overview, a look", "ms of CPU", each * 1000)
    bench.add("web", "overview, of the drain", "%", 100 * part / DRAIN)
    bench.say(f"web: an open overview takes {part * 1000:.1f} ms of CPU a second beside a drain")


def streams(bench: Bench) -> None:
    if not bench.wants("streams"):
        return
    from ..tabs import open_tabs

    with bench.database() as url:
        for count in (1, STREAMS):
            with open_tabs(url, count) as tabs:
                before, sent, began = tabs.used_here(), tabs.sent, time.monotonic()
                time.sleep(max(bench.sizes.seconds, 2.0))
                took = time.monotonic() - began
                share, each = 100 * (tabs.used_here() - before) / took, (tabs.sent - sent) / took / count
            bench.add("web", f"streams-{count}", "% of a core", share)
            bench.say(f"web streams-{count}: {share:.2f} % of a core, {each:,.0f} bytes/s each")


def acts(bench: Bench) -> None:
    if not bench.wants("acts"):
        return
    with bench.database() as url:
        fill(url, archived=1000, due=2000, runs=100)
        asyncio.run(_acts(bench, url))


async def _acts(bench: Bench, url: str) -> None:
    from ...app import Holdfast
    from ...web.application import dashboard
    from ...web.identity import Identity
    from ..visits import visit

    app = Holdfast(url)
    made = dashboard(app, lambda _: Identity("bench", "admin"))
    with psycopg.connect(url, autocommit=True) as conn:
        head = postmaster_of(conn)
        ids = [
            str(row[0]) for row in conn.execute("SELECT id FROM holdfast.work WHERE queue = 'mail' LIMIT 50")
        ]
        dead = [str(row[0]) for row in conn.execute("SELECT id FROM holdfast.dead_letters LIMIT 50")]
    try:
        await made.site.diagnosis()
        size = 0
        for _ in range(TRIES):
            size = (await visit(made, "/")).size
        server = [] if head is None else children_of(head)
        bare = bare_page(size)
        kinds: list[tuple[str, Any, str, Sequence[dict[str, object]]]] = [
            ("bare page", bare, "/", ()),
            ("first load", made, "/", ()),
            ("act: pause a queue", made, "queue-pause", [{"queue": "mail"}]),
            ("act: resume a queue", made, "queue-resume", [{"queue": "mail"}]),
            ("act: pause a task", made, "task-pause", [{"task": "mail.send"}]),
            ("act: resume a task", made, "task-resume", [{"task": "mail.send"}]),
            ("act: redrive a dead letter", made, "dead-redrive", [{"ids": [one]} for one in dead]),
            ("act: cancel a job", made, "jobs-cancel", [{"ids": [one]} for one in ids]),
        ]
        for name, asked, path, bodies in kinds:
            posts = [json.dumps(body).encode() for body in bodies]
            address = f"/api/v1/acts/{path}" if posts else path
            times = []
            for n in range(_times(bench, BATCH)):
                one = await visit(asked, address, server, posts[n % len(posts)] if posts else None)
                if one.status >= 400:
                    raise RuntimeError(f"{name} failed with {one.status}")
                times.append(one.busy * 1000)
            bench.add("web", name, "ms", sorted(times)[len(times) // 2])
    finally:
        await made.site.close()
        await app.database.aclose()
        app.close()


def bare_page(size: int) -> Any:
    """A page of as many bytes, with nothing behind it."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    async def page(_: Request) -> HTMLResponse:
        return HTMLResponse("x" * size)

    return Starlette(routes=[Route("/", page)])
