"""The way to the server: LISTEN, poolers, clocks, number of connections."""

from collections.abc import Iterator
from urllib.parse import quote

from ...store import doctor as store
from ...store.doctor import Connections
from ..advice import Advice, advise, run_sql
from ..wording import several, span
from .finding import Check, Finding, Patient

# Connections of a worker beside one for each slot: four spare ones for handlers, and one for each engine loop.
BESIDE = 4 + 7


def check_listen(p: Patient) -> Iterator[Finding]:
    """Where workers do not want to be woken, no check is needed."""
    settings = p.database.settings
    if settings.notify and not p.probe.listen(p.limits.listen):
        where = "at listen_url" if settings.listen_url else "on this connection"
        what = (
            f"a notification did not come back within {span(p.limits.listen)}: LISTEN does not work {where}, "
            f"so idle workers find jobs by polling every {span(settings.poll)} only"
        )
        yield Finding("listen", "warning", what, [direct_address(p, "use_listen_url")])


def check_pooler(p: Patient) -> Iterator[Finding]:
    found = p.probe.pooled()
    if found.shared:
        what = (
            "a pooler between here and the server shares connections between sessions: settings, LISTEN, prepared "
            "statements and session locks of one session reach another"
        )
        yield Finding(
            "pooler_shared",
            "warning",
            what,
            [direct_address(p)],
            otherwise=[advise("pool_sessions")],
        )
    elif found.between:
        what = "a pooler stands between here and the server, and keeps one connection for each session"
        yield Finding("pooler_session", "info", what, [direct_address(p)])


def direct_address(p: Patient, code: str = "use_database_url") -> Advice:
    """The server's own address; the reader adds a password."""
    s = p.server
    name, user = quote(s.name, safe=""), quote(s.user, safe="")
    if s.address is not None:
        host = f"[{s.address}]" if ":" in s.address else s.address
        url = f"postgresql://{user}@{host}:{s.port}/{name}"
    else:
        folder = (s.sockets or "").split(",")[0].strip().strip('"')
        url = f"postgresql://{user}@/{name}?host={quote(folder, safe='')}&port={s.port}"
    return advise(code, url=url)


def check_clock(p: Patient) -> Iterator[Finding]:
    ahead, margin = p.probe.skew()
    if abs(ahead) - margin > p.limits.skew:
        where = "ahead of" if ahead > 0 else "behind"
        what = (
            f"the clock of this machine is {abs(ahead):.1f} s {where} the server's. Only the server's decides when a job "
            "runs and whose lease is over; times in logs and metrics, and run_after= as a datetime, are off by so much"
        )
        yield Finding(
            "clock_skew", "warning", what, [advise("synchronise_clock")], otherwise=[advise("step_clock")]
        )


def check_connections(p: Patient) -> Iterator[Finding]:
    use = p.probe.look(store.connection_use(p.dead_after, BESIDE))
    for name, limit, fix in _limits(p, use):
        free = limit - (use.others if name == "server" else 0)
        if use.wanted > free:
            what = (
                f"{several(use.workers, 'worker')} may open {use.wanted:,} connections, "
                f"and the {name} has {max(free, 0):,} for them"
            )
            details = [f"each worker: its concurrency and {BESIDE} more", f"in use by others: {use.others:,}"]
            otherwise = [advise("fewer_slots")]
            yield Finding("connections", "warning", what, fix, details, otherwise)


def _limits(p: Patient, use: Connections) -> Iterator[tuple[str, int, list[Advice]]]:
    more = use.wanted + use.others + 20
    grow = [
        run_sql(f"ALTER SYSTEM SET max_connections = {more}"),
        advise("restart_server", folder=p.server.data_directory),
    ]
    yield "server", use.server, grow
    if use.database >= 0:
        sql = f"ALTER DATABASE {p.server.database} CONNECTION LIMIT {more}"
        yield "database", use.database, [run_sql(sql)]
    if use.role >= 0:
        yield "role", use.role, [run_sql(f"ALTER ROLE {p.server.role} CONNECTION LIMIT {more}")]


CHECKS = (
    Check("listen", "a notification comes back", ("listen",), check_listen, needs_schema=False),
    Check(
        "pooler",
        "no pooler in between",
        ("pooler_shared", "pooler_session"),
        check_pooler,
        needs_schema=False,
    ),
    Check("clock", "this machine's clock is the server's", ("clock_skew",), check_clock, needs_schema=False),
    Check("connections", "there are connections for every worker", ("connections",), check_connections),
)
