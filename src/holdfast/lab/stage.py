"""One scene while it runs: its database, its workers, its tape, and what can be seen of them."""

import contextlib
import functools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.rows import dict_row

from holdfast.db.executors import listen_in
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.lab.crew import Crew, Member
from holdfast.lab.marks import Marks
from holdfast.lab.notes import UNSAFE, Pen, Reader
from holdfast.lab.outside import STEPPING
from holdfast.lab.place import LabHost
from holdfast.lab.scene import SHORT, Act, Scene
from holdfast.lab.tape import Moment, Tape
from holdfast.settings import Settings, known_variables
from holdfast.store.queues import create_queue
from holdfast.store.statement import Row, Statement

T = TypeVar("T")
SHOWN = frozenset({"enqueue_many", "enqueue", "publish_events", "publish"})
_WORKERS = """
    SELECT k.pid, k.status, k.ended, count(j.id)::int AS jobs, min(right(j.id::text, 6)) AS job,
           max(w.lease_generation)::int AS generation, min(w.task) AS task,
           round(extract(epoch FROM min(c.lease_expires_at) - holdfast.now())::numeric, 1)::float8 AS lease,
           round(extract(epoch FROM holdfast.now() - k.last_seen_at)::numeric, 1)::float8 AS silent
    FROM holdfast.workers k
    LEFT JOIN holdfast.claims c ON c.worker = k.id AND c.revoked_at IS NULL
    LEFT JOIN LATERAL unnest(c.job_ids) AS j(id) ON true
    LEFT JOIN holdfast.work w ON w.id = j.id AND w.status = 'processing' AND w.claim_token = c.token
    GROUP BY k.id ORDER BY k.started_at"""


class Stage:
    def __init__(
        self, place: LabHost, scene: Scene, *, unsafe: bool = False, values: Mapping[str, float] | None = None
    ) -> None:
        self.scene = scene
        self.unsafe = unsafe
        self.values = {knob.name: knob.value for knob in scene.knobs} | dict(values or {})
        self.place = place
        self.url = place.fresh()
        self.folder = place.folder / f"{scene.name}-{time.monotonic_ns()}"
        self.folder.mkdir()
        self._lock = threading.RLock()
        self._acting = threading.Lock()
        self._conn = psycopg.Connection[dict[str, Any]].connect(
            self.url, autocommit=True, row_factory=dict_row
        )
        self.began = time.time()
        self.crew = Crew(place.forks, self.folder, scene.name, self.url)
        self.tape = Tape(self.began, self.name_of)
        self._reader = Reader(self.folder)
        self._pen = Pen(self.folder)
        self.marks = Marks()
        self._told: set[int] = set()  # chapters that have happened
        self.seen: dict[str, Any] = {}  # for the scene's own use, from act to act
        scene.app._use(self.url, self.settings)
        self._set_up()

    def _set_up(self) -> None:
        for statement in self.scene.schema:
            self.sql(statement)
        app = self.scene.app
        for name, rules in app.tasks.queue_rules().items():
            app.database.run(functools.partial(create_queue, name, rules=rules))
        self.scene.begin(self)

    @property
    def settings(self) -> Settings:
        known = {name.removeprefix("HOLDFAST_").lower() for name in known_variables()}
        turned = {name: value for name, value in self.values.items() if name in known}
        whole: dict[str, Any] = {**SHORT, **self.scene.settings, **turned}
        if self.unsafe:
            whole |= self.scene.unsafe_settings
        for name in ("concurrency", "prefetch"):
            if name in whole:
                whole[name] = int(whole[name])
        least = whole["dead_after"] + whole["sweep"]
        return Settings(**whole | {"lease": max(whole["lease"], least)})

    def name_of(self, pid: int) -> str:
        if pid == os.getpid():
            return "api"
        member = self.crew.by_pid(pid)
        return str(pid) if member is None else member.name

    # State --------------------------------------------------------------------------------------------------

    def sql(self, query: str, params: Sequence[object] = ()) -> list[dict[str, Any]]:
        with self._lock:
            cursor = self._conn.execute(query.encode(), params or None)
            return cursor.fetchall() if cursor.description is not None else []

    def number(self, query: str, params: Sequence[object] = ()) -> int:
        (row,) = self.sql(query, params)
        return int(next(iter(row.values())) or 0)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection as an application has it: what is done on it is committed at the end, unless it is rolled back."""
        with psycopg.connect(self.url) as conn:
            yield conn

    def read(self) -> None:
        """Take in what the processes wrote down meanwhile."""
        with self._lock:
            for note in self._reader.new():
                self.tape.add(note)

    def counters(self) -> list[tuple[str, int]]:
        return [(label, self.number(query)) for label, query in self.scene.promise.counters]

    def holds(self, counters: Sequence[tuple[str, int]] | None = None) -> bool:
        found = dict(self.counters() if counters is None else counters)
        return not any(found[label] for label in self.scene.promise.broken)

    def look(self) -> dict[str, Any]:
        """Everything that a page shows, as it is now."""
        self.read()
        counters = self.counters()
        self._told |= {n for n, chapter in enumerate(self.scene.story) if chapter.done(self)}
        rows = {table.name: self.sql(table.query) for table in self.scene.tables}
        self.marks.take(rows, {table.name: table.quiet for table in self.scene.tables})
        return {
            "at": round(time.time() - self.began, 1),
            "unsafe": self.unsafe,
            "holds": self.holds(counters),
            "counters": counters,
            "story": [n in self._told for n in range(len(self.scene.story))],
            "workers": self.workers(),
            "tables": self.marks.shown(),
            "tape": [[m.at, m.who, m.text, m.tone] for m in self.tape.shown()],
            "ran": self.tape.last,
            "values": self.values,
            "api": os.getpid(),
        }

    def workers(self) -> list[dict[str, Any]]:
        """By process: what the system says of it, and what its row does."""
        rows: dict[int, dict[str, Any]] = {}
        for row in self.sql(_WORKERS):
            rows.setdefault(row["pid"], row)
            if row["status"] == "alive":  # one that was fenced starts over, as a second row
                rows[row["pid"]] = row
        said = {moment.who: moment for moment in self.tape.moments}
        return [
            {
                "name": member.name,
                "pid": member.pid,
                "state": member.state,
                "says": said[member.name].text if member.name in said else "starts",
                "tone": said[member.name].tone if member.name in said else "",
                **rows.get(member.pid, {}),
            }
            for member in self.crew.members.values()
        ]

    # What can be done -----------------------------------------------------------------------------------------------

    def start(self) -> Member:
        named = {**SHORT, **self.scene.settings, **self.scene.unsafe_settings}
        values = {name: getattr(self.settings, name) for name in named}
        values |= {name: getattr(self.settings, name) for name in self.values if hasattr(self.settings, name)}
        return self.crew.start(values, **{UNSAFE: "1" if self.unsafe else "0"})

    def start_ready(self) -> Member:
        """One more worker, once it is in the registry."""
        member = self.start()
        self.wait(
            lambda: self.number("SELECT count(*) FROM holdfast.workers WHERE pid = %s", [member.pid]),
            f"worker {member.name} is in the registry",
            30,
        )
        return member

    def stepping(self, on: bool) -> None:
        """Workers stop after each step, or run freely."""
        if on:
            (self.folder / STEPPING).touch()
        else:
            (self.folder / STEPPING).unlink(missing_ok=True)

    def hold(self, place: str, on: bool = True) -> None:
        """Handlers wait at this place, or continue."""
        if on:
            (self.folder / f"hold-{place}").touch()
        else:
            (self.folder / f"hold-{place}").unlink(missing_ok=True)

    def holds_at(self, place: str) -> bool:
        return (self.folder / f"hold-{place}").exists()

    def until_held(self, place: str) -> Member:
        """The worker that waits at this place."""

        def waiting() -> Member | None:
            pids = [n.pid for n in self.tape.notes if n.kind == "did" and n.fields.get("at") == place]
            return self.crew.by_pid(pids[-1]) if pids else None

        return self.wait(waiting, f"a worker waits {place}")  # type: ignore[return-value]

    def note(self, text: str, tone: str = "") -> None:
        self._pen.write("did", text, tone=tone)

    def act(self, name: str, of: str | None = None) -> None:
        """The act of a button. One at a time."""
        act = self.act_named(name)
        with self._acting, self._heard():
            if act.of_worker:
                act.run(self, self.crew.member(of or ""))
            else:
                act.run(self)

    def act_named(self, name: str) -> Act:
        for act in self.scene.acts:
            if act.name == name:
                return act
        known = ", ".join(act.name for act in self.scene.acts)
        raise ConfigurationError(f"there is no act {name!r} in scene {self.scene.number} (known: {known})")

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """Note what the producer runs, as its workers do."""

        def hear(statement: Statement[Any], rows: list[Row], seconds: float) -> None:
            if statement.name in SHOWN:
                self._pen.ran(statement, rows, seconds)

        stop = listen_in(hear)
        try:
            yield
        finally:
            stop()

    def turn(self, name: str, value: float) -> None:
        knob = next((knob for knob in self.scene.knobs if knob.name == name), None)
        if knob is None:
            known = ", ".join(knob.name for knob in self.scene.knobs)
            raise ConfigurationError(
                f"there is no knob {name!r} in scene {self.scene.number} (known: {known})"
            )
        if not knob.least <= value <= knob.most:
            raise ConfigurationError(
                f"{knob.label} must be between {knob.least:g} and {knob.most:g}, not {value:g}"
            )
        self.values[name] = value

    def wait(self, condition: Callable[[], T], what: str, seconds: float = 60.0) -> T:
        """Until it is so. For scripts."""
        deadline = time.monotonic() + seconds
        while True:
            self.read()
            if found := condition():
                return found
            if time.monotonic() > deadline:
                raise HoldfastError(
                    f"scene {self.scene.number}: it did not happen within {seconds:g} s that {what}.{self._tails()}"
                )
            time.sleep(0.03)

    def until_idle(self) -> None:
        """Until no job is left."""
        self.wait(lambda: not self.number("SELECT count(*) FROM holdfast.work"), "every job is finished")

    def _tails(self) -> str:
        return "".join(f"\n--- {name}\n{self.crew.log(name)[-1500:]}" for name in self.crew.members)

    def play(self, chance: random.Random) -> None:
        self.scene.play(self, chance)
        self.read()

    def moments(self) -> list[Moment]:
        return list(self.tape.moments)

    def close(self) -> None:
        self.crew.end()
        self.scene.app.close()
        with self._lock:
            self._conn.close()
        self.place.leave(self.url)
