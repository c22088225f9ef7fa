"""The parts of a scene. A scene is one module with an app, whose tasks its workers run, and a SCENE."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from holdfast.app import Holdfast

OnStage: TypeAlias = Any  # a Stage, which knows scenes: so they cannot name it

# Short, so that nobody waits: what takes a minute in production takes a second here.
SHORT: Mapping[str, float] = {
    "lease": 4.0,
    "heartbeat": 0.3,
    "dead_after": 1.2,
    "sweep": 0.2,
    "poll": 0.1,
    "ring": 0.2,
    "takeover": 1.0,
    "drain": 5.0,
}


@dataclass(frozen=True, slots=True)
class Knob:
    """A number that somebody turns. It is a real setting or a real number of jobs."""

    name: str
    label: str
    value: float
    least: float
    most: float
    unit: str = ""
    step: float = 1.0


@dataclass(frozen=True, slots=True)
class Act:
    """A button. `of_worker`: it stands on every worker, and is given its name."""

    name: str
    label: str
    run: Callable[..., None]
    icon: str = "play"
    of_worker: bool = False


@dataclass(frozen=True, slots=True)
class Chapter:
    """One step of the story: what to do and what to watch, and how to see in the rows that it has happened."""

    text: str
    done: Callable[[OnStage], bool]


@dataclass(frozen=True, slots=True)
class Rows:
    """Real rows: a SELECT whose first column names the row. `quiet` columns change all the time, and are not marked."""

    name: str
    query: str
    about: str = ""
    quiet: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Promise:
    """What must hold, and the numbers that show it. `broken` are those of the numbers that must be 0."""

    sentence: str
    counters: Sequence[tuple[str, str]]  # what it is, and a SELECT of one number
    broken: Sequence[str]


@dataclass(frozen=True, slots=True)
class Scene:
    number: int
    name: str  # of its module, and in addresses
    title: str
    short: str  # on its tab
    lead: str
    story: Sequence[Chapter]
    promise: Promise
    unsafe: str  # what the switch takes away
    then: str  # what goes wrong without it
    schema: Sequence[str]  # tables of the scene's own
    tables: Sequence[Rows]
    acts: Sequence[Act]
    play: Callable[[OnStage, random.Random], None]
    app: Holdfast
    knobs: Sequence[Knob] = ()
    settings: Mapping[str, float] = field(default_factory=dict)
    unsafe_settings: Mapping[str, float] = field(default_factory=dict)
    begin: Callable[[OnStage], None] = lambda _: None  # what stands on the stage when it opens
    picture: str = "workers"
    notes: bool = True  # whether workers note their statements, which takes them time


JOBS = Rows(
    "holdfast.work",
    """SELECT right(w.id::text, 6) AS id, w.task, w.status, w.attempts, w.lease_generation AS generation,
              CASE WHEN w.lease_generation > 0 THEN left(w.claim_token::text, 4) END AS token, w.partition_key AS key,
              k.pid AS owner, round(extract(epoch FROM c.lease_expires_at - holdfast.now())::numeric, 1)::float8 AS lease
       FROM holdfast.work w
       LEFT JOIN holdfast.claims c ON c.token = w.claim_token AND w.status = 'processing'
       LEFT JOIN holdfast.workers k ON k.id = c.worker
       ORDER BY w.seq LIMIT 30""",
    "jobs that are not finished",
    ("lease",),
)
DONE = Rows(
    "holdfast.archive",
    """SELECT right(a.id::text, 6) AS id, a.task, a.status, a.attempts, a.lease_generation AS generation, k.pid AS by
       FROM holdfast.archive a LEFT JOIN holdfast.workers k ON k.id = a.claimed_by
       ORDER BY a.completed_at DESC, a.seq DESC LIMIT 30""",
    "jobs that are finished",
)
MAILS = Rows(
    "mails",
    "SELECT n, 'order ' || order_id AS about, right(job::text, 6) AS job, fence, pid FROM mails ORDER BY n DESC LIMIT 30",
    "what the mail server saw: nobody can take a mail back",
)
ORDERS_TABLE = (
    "CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, cents int NOT NULL DEFAULT 4200)"
)
ORDERS = Rows("orders", "SELECT id, cents FROM orders ORDER BY id DESC LIMIT 20", "orders that are paid")
RECEIPTS = Rows(
    "receipts",
    "SELECT n, 'order ' || order_id AS about, generation, pid FROM receipts ORDER BY n DESC LIMIT 20",
    "written in the job's own transaction: once, or not at all",
)
RECEIPTS_TABLE = """CREATE TABLE receipts (n int GENERATED ALWAYS AS IDENTITY, order_id int NOT NULL,
                                           generation bigint NOT NULL, pid int NOT NULL)"""
MAILS_TABLE = """CREATE TABLE mails (n int GENERATED ALWAYS AS IDENTITY, order_id int NOT NULL, job uuid NOT NULL,
                                     fence bigint NOT NULL, pid int NOT NULL)"""
