"""Every page and every list of the API of a dashboard: how long the server takes, and how much it sends.

Without a socket: what is timed is the dashboard and PostgreSQL, and nothing of a network. Where nobody has looked before,
the numbers that all share are read for this one visit too.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import psycopg

from ..app import Holdfast
from ..web.application import dashboard
from ..web.assets import ASSETS
from ..web.identity import Identity
from ..web.site import Site
from .processor import children_of, postmaster_of, used_by

QUERIES = {
    "live": "SELECT id FROM holdfast.work WHERE queue = 'mail' AND status = 'pending' ORDER BY id DESC LIMIT 1",
    "running": "SELECT job_ids[1] FROM holdfast.claims LIMIT 1",
    "archived": "SELECT id FROM holdfast.archive WHERE slot = holdfast.archive_slot(now() - interval '3 days') LIMIT 1",
    "dead": "SELECT id FROM holdfast.dead_letters ORDER BY died_at DESC LIMIT 1",
    "run": "SELECT id FROM holdfast.workflow_runs ORDER BY id LIMIT 1",
    "key": "SELECT partition_key FROM holdfast.work WHERE queue = 'parcels' LIMIT 1",
}
LISTS = (
    "jobs?state=pending",
    "jobs?state=scheduled",
    "jobs?state=processing",
    "jobs?state=held",
    "jobs?state=completed",
    "jobs?state=cancelled",
    "jobs?state=dead_letter",
    "jobs?state=backing_off",
    "jobs?queue=mail&task=mail.send",
    "jobs?task=nothing.of_that_name",
    "jobs?tag=vip",
    "jobs?key=customer:77",
    "jobs?error=psp.example",
    "dead?queue=billing",
    "dead?each=1",
    "queues/mail",
    "queues/parcels",
    "queues/mail?history=30d",
    "keys/parcels",
    "keys/parcels?key={key}",
    "jobs/{live}",
    "jobs/{running}",
    "jobs/{archived}",
    "jobs/{dead}",
    "workflows?state=open",
    "workflows?state=suspended",
    "workflows?state=failed",
    "workflows?state=cancelled",
    "workflows?state=diverged",
    "workflows?state=terminated",
    "workflows?state=completed",
    "workflows?workflow=checkout",
    "workflows/{run}",
    "audit?actor=mara",
    "audit?verb=queue pause",
    "audit?actor=nobody",
    "find?q=mail",
)


PROGRAM = [(b"authorization", b"Bearer of-the-bench"), (b"content-type", b"application/json")]


class AsgiApp(Protocol):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Visit:
    path: str
    name: str  # the path, without what is of this database alone
    status: int
    seconds: float  # by the clock
    busy: float  # of the processor, here and in the server: what the clock would say on a machine with nothing else to do
    size: int  # bytes, as a browser is sent them


async def visit(
    app: AsgiApp, path: str, server: Sequence[int] = (), post: bytes | None = None, name: str = ""
) -> Visit:
    """One GET as a browser asks, or a POST as a program does. `server`: the processes of PostgreSQL."""
    bare, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
        "method": "GET" if post is None else "POST",
        "path": bare, "raw_path": bare.encode(), "root_path": "", "query_string": quote(query, safe="=&%+:").encode(),
        "headers": [(b"host", b"127.0.0.1"), (b"accept-encoding", b"gzip"), *([] if post is None else PROGRAM)],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    said: list[Mapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": post or b"", "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        said.append(message)

    before, of_server = time.process_time(), {pid: used_by(pid) for pid in server}
    began = time.perf_counter()
    await app(scope, receive, send)
    took = time.perf_counter() - began
    used = (used_by(pid) - already for pid, already in of_server.items())
    busy = time.process_time() - before + sum(max(0.0, seconds) for seconds in used)  # some may have ended
    size = sum(len(message.get("body", b"")) for message in said)
    return Visit(path, name or path, int(said[0]["status"]), took, busy, size)


def addresses(site: Site, url: str) -> dict[str, str]:
    """By name: every page without a place in its path, and those of LISTS with what is in this database; each also of the
    API."""
    with psycopg.connect(url, autocommit=True) as conn:
        known = {
            name: quote(str(rows[0][0]))
            for name, q in QUERIES.items()
            if (rows := conn.execute(q.encode()).fetchall())
        }
    names = [page.path for page in site.pages.values() if "{" not in page.path]
    names += [path for path in LISTS if "{" not in path or path.partition("{")[2].rstrip("}") in known]
    api = [f"api/v1/{name or 'overview'}" for name in names if not name.startswith("find")]
    return {f"/{name}": f"/{name.format(**known)}" for name in (*names, *api)}


async def visits(url: str, times: int = 3, *, app: Holdfast | None = None) -> list[Visit]:
    """The quickest of `times` visits of each, each with empty caches, except for the doctor's results."""
    app = app or Holdfast(url)
    made = dashboard(app, lambda _: Identity("bench", "admin"))
    try:
        await made.site.diagnosis()
        await visit(made, "/")  # its connections are open
        with psycopg.connect(url) as conn:
            head = postmaster_of(conn)
        found = []
        for name, path in addresses(made.site, url).items():
            best: Visit | None = None
            for _ in range(times):
                for topic in ("overview", "rest"):
                    made.site.snapshots.drop(topic)
                server = [] if head is None else children_of(head)
                one = await visit(made, path, server, name=name)
                best = one if best is None or one.busy < best.busy else best
            assert best is not None
            found.append(best)
        return found
    finally:
        await made.site.close()
        app.close()


def first_load(page: Visit) -> int:
    """Bytes that a browser which was never here is sent, for this page and its scripts and styles."""
    files = ("theme.js", "app.js", "style.css", "favicon.svg")
    return page.size + sum(len(ASSETS[name].packed) for name in files)
