"""What the doctor asks the server and the tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from ..sql import query
from .statement import Statement, ids, named

LISTED = 1000  # rows that a check lists
CAP = 10_000  # rows that a check counts


@dataclass(frozen=True, slots=True)
class ServerFacts:
    role: str  # quoted, as the database is
    database: str
    name: str  # of the database, as it is
    user: str
    sees_all: bool  # also other roles' sessions
    standby: bool
    address: str | None  # None: over a socket
    port: int
    sockets: str | None
    data_directory: str | None


def server() -> Statement[ServerFacts]:
    return named("doctor_server", (), lambda rows: ServerFacts(*rows[0]))


@dataclass(frozen=True, slots=True)
class Writes:
    refused: bool
    source: str  # as in pg_settings


def writes() -> Statement[Writes]:
    return named("doctor_writes", (), lambda rows: Writes(*rows[0]))


def settings(names: Sequence[str]) -> Statement[dict[str, str]]:
    return named("doctor_settings", (list(names),), lambda rows: {r[0]: r[1] for r in rows})


@dataclass(frozen=True, slots=True)
class Override:
    name: str
    value: str
    whose: str
    reset: str


def overrides(names: Sequence[str]) -> Statement[list[Override]]:
    return named(
        "doctor_overrides",
        (list(names),),
        lambda rows: [Override(*r) for r in rows],
    )


# The horizon --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holder:
    pid: int
    role: str
    application: str
    state: str
    seconds: float | None
    transactions: int
    query: str


@dataclass(frozen=True, slots=True)
class Prepared:
    gid: str
    owner: str
    seconds: float
    transactions: int


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    kind: str
    active: bool
    transactions: int | None
    catalogs_only: bool
    wal: int | None  # bytes that it keeps


def horizon_sessions(seconds: float, transactions: int) -> Statement[list[Holder]]:
    return named(
        "horizon_sessions",
        (seconds, transactions),
        lambda rows: [Holder(*r) for r in rows],
    )


def horizon_prepared(seconds: float) -> Statement[list[Prepared]]:
    return named("horizon_prepared", (seconds,), lambda rows: [Prepared(*r) for r in rows])


def horizon_slots(transactions: int, wal: int) -> Statement[list[Slot]]:
    return named("horizon_slots", (transactions, wal), lambda rows: [Slot(*r) for r in rows])


def end_session(pid: int, seconds: float, transactions: int) -> Statement[bool]:
    """False: it is none of horizon_sessions(), and continues."""
    return named(
        "end_session",
        (pid, seconds, transactions),
        lambda rows: bool(rows and rows[0][0]),
    )


# Vacuum and connections ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Vacuumed:
    table: str
    dead: int
    live: int
    seconds: float | None  # since it was vacuumed; None: never
    xid_age: int
    off: bool


def vacuum_state() -> Statement[list[Vacuumed]]:
    return named("vacuum_state", (), lambda rows: [Vacuumed(*r) for r in rows])


@dataclass(frozen=True, slots=True)
class Connections:
    server: int
    database: int  # -1: no limit
    role: int  # -1: no limit
    others: int
    workers: int
    wanted: int


def connection_use(late_after: float, beside: int) -> Statement[Connections]:
    return named(
        "connection_use",
        (late_after, beside),
        lambda rows: Connections(*rows[0]),
    )


# Jobs ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stranded:
    id: UUID
    queue: str
    task: str
    seconds: float


def find_stranded() -> Statement[list[Stranded]]:
    return named("find_stranded", (LISTED,), lambda rows: [Stranded(*r) for r in rows])


def free_stranded(queue: str, job_ids: Sequence[UUID]) -> Statement[list[UUID]]:
    return named("free_stranded", (queue, list(job_ids)), ids)


@dataclass(frozen=True, slots=True)
class Unswept:
    queue: str
    worker: str
    status: str | None  # None: nobody knows this worker
    silent: float | None
    expired: float  # seconds since the lease ran out; negative: it has not
    jobs: int
    first: UUID


def unswept_claims(late: float, dead_after: float) -> Statement[list[Unswept]]:
    return named(
        "unswept_claims",
        (late, dead_after, LISTED),
        lambda rows: [Unswept(*r) for r in rows],
    )


def claim_holders(seconds: float, queues: Sequence[str], workers: Sequence[str]) -> Statement[list[int]]:
    """Processes that have blocked sweeps of these workers' claims for longer than this."""
    return named(
        "claim_holders",
        (seconds, list(queues), list(workers)),
        lambda rows: [r[0] for r in rows],
    )


def live_workers(dead_after: float) -> Statement[dict[str, int]]:
    return named("live_workers", (dead_after,), lambda rows: {r[0]: r[1] for r in rows})


@dataclass(frozen=True, slots=True)
class Unserved:
    queue: str
    task: str
    seconds: float


def unserved_queues(dead_after: float, waiting: float) -> Statement[list[Unserved]]:
    return named(
        "unserved_queues",
        (dead_after, waiting),
        lambda rows: [Unserved(*r) for r in rows],
    )


@dataclass(frozen=True, slots=True)
class LongHeld:
    id: UUID
    queue: str
    task: str
    worker: str
    host: str
    pid: int
    seconds: float
    asked: float | None  # seconds since it was asked to stop


def long_held(running: float, asked: float, dead_after: float) -> Statement[list[LongHeld]]:
    return named(
        "long_held",
        (running, asked, dead_after, LISTED),
        lambda rows: [LongHeld(*r) for r in rows],
    )


@dataclass(frozen=True, slots=True)
class Forgotten:
    id: UUID
    queue: str
    task: str
    worker: str
    seconds: float
    usual: float  # seconds that its task takes


def forgotten_jobs(times: float, least: float, dead_after: float) -> Statement[list[Forgotten]]:
    return named(
        "forgotten_jobs",
        (times, least, dead_after, LISTED),
        lambda rows: [Forgotten(*r) for r in rows],
    )


@dataclass(frozen=True, slots=True)
class Quarantined:
    id: UUID
    queue: str
    task: str
    reason: str


def quarantined_jobs() -> Statement[list[Quarantined]]:
    return named("quarantined_jobs", (LISTED,), lambda rows: [Quarantined(*r) for r in rows])


@dataclass(frozen=True, slots=True)
class UnknownTask:
    queue: str
    task: str
    version: int
    jobs: int
    workers: list[str]  # live ones that know the task in another version


def unknown_tasks(dead_after: float) -> Statement[list[UnknownTask]]:
    return named(
        "unknown_tasks",
        (dead_after, CAP),
        lambda rows: [UnknownTask(*r) for r in rows],
    )


@dataclass(frozen=True, slots=True)
class MisfitTask:
    queue: str
    task: str
    version: int
    jobs: int
    reason: str  # of the last one that was refused
    signatures: int  # that refused one


def misfit_tasks() -> Statement[list[MisfitTask]]:
    return named("misfit_tasks", (CAP,), lambda rows: [MisfitTask(*r) for r in rows])


@dataclass(frozen=True, slots=True)
class LongPaused:
    what: str  # queue or task
    name: str
    seconds: float
    by: str | None
    waits: bool  # due jobs do


def long_paused(seconds: float, waiting: float) -> Statement[list[LongPaused]]:
    return named("long_paused", (seconds, waiting), lambda rows: [LongPaused(*r) for r in rows])


@dataclass(frozen=True, slots=True)
class HeldBack:
    queue: str
    seconds: float  # for which its oldest job is due
    slots: int  # of live workers that serve it


def held_back(dead_after: float, waiting: float) -> Statement[list[HeldBack]]:
    return named("held_back", (dead_after, waiting), lambda rows: [HeldBack(*r) for r in rows])


@dataclass(frozen=True, slots=True)
class Suspect:
    id: UUID
    queue: str
    task: str
    deaths: int


def suspect_jobs() -> Statement[list[Suspect]]:
    return named("suspect_jobs", (LISTED,), lambda rows: [Suspect(*r) for r in rows])


@dataclass(frozen=True, slots=True)
class RecentDead:
    task: str
    count: int
    error: str | None


def recent_dead() -> Statement[list[RecentDead]]:
    return named("recent_dead", (CAP,), lambda rows: [RecentDead(*r) for r in rows])


@dataclass(frozen=True, slots=True)
class OverdueSlot:
    slot: int
    day: str
    untidied: float  # seconds since the last tidy
    retention: int


def overdue_slots() -> Statement[list[OverdueSlot]]:
    return named("overdue_slots", (), lambda rows: [OverdueSlot(*r) for r in rows])


# For a person to run ------------------------------------------------------------------------------------------------


def forget_queue_sql(name: str) -> str:
    """`name` is a literal of SQL, as are those below."""
    return _plain(query("forget_queue"), name)


def enter_queue_sql(name: str, table: str) -> str:
    return _plain(query("enter_queue"), name, table)


def _plain(text: str, *literals: str) -> str:
    """On one line, without comments, and with values for its parameters."""
    code = " ".join(line.strip() for line in text.splitlines() if not line.startswith("--"))
    for number, value in enumerate(literals, 1):
        code = code.replace(f"${number}", value)
    return code
