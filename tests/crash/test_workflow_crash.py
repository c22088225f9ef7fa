"""The owner of a run is killed, stopped or cut off at each place where it writes. The run must come to the same end, with
the same effects and the same history, as one that nothing befell, and no body may run again once its record is there. What
must hold at every moment is looked at all the while: tests/crash/invariants.py."""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.conftest import wait_until
from tests.crash.invariants import Invariants
from tests.crash.process import lines
from tests.crash.proxy import Proxy
from tests.crash.workflow_app import GO, POINTS, TABLE, TIMINGS, Order, build, work
from tests.workflows.support import Runs, waits
from tests.workflows.support import step as recorded

from holdfast import DatabaseUnavailable, ResultExpired
from holdfast.testing import Kit, TestServer

SILENT = """UPDATE holdfast.workers SET last_seen_at = last_seen_at - interval '1 day'
            WHERE pid = ANY (%s) AND status <> 'gone'"""
SIGNALS = "SELECT name FROM holdfast.workflow_signals WHERE run_id = %s"
FENCED = "SELECT id FROM holdfast.workers WHERE pid = %s AND fenced_at IS NOT NULL"
# Of a step, in a process that stands still: it holds the run, and nobody can take it over before it goes on.
HOLDS = """SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'
           AND pid <> pg_backend_pid() AND state IN ('active', 'idle in transaction')"""
SENT = """INSERT INTO holdfast.workflow_signals (run_id, name, sent_at, taken_by)
          SELECT id, '{}', holdfast.now(), {} FROM holdfast.workflow_runs"""
LEFT = """SELECT (SELECT count(*) FROM holdfast.work w WHERE w.queue = 'workflows') AS work,
                 (SELECT count(*) FROM holdfast.workflow_steps) AS steps,
                 (SELECT count(*) FROM holdfast.workflow_calls) AS calls,
                 (SELECT count(*) FROM holdfast.workflow_runs WHERE ended_at IS NULL) AS open"""


@dataclass(frozen=True)
class Ending:
    """What must be the same, whatever befell the run."""

    state: str
    result: Any
    history: list[tuple[Any, ...]]
    effects: list[str]
    undone: list[str]  # compensations in their order


class Theatre:
    """One database, and workers that come and go in it."""

    def __init__(self, kit: Kit, flows: dict[str, Any], folder: Path) -> None:
        self.kit = kit
        self.flows = flows
        self.folder = folder
        self._forks = multiprocessing.get_context("forkserver")
        self._forks.set_forkserver_preload(["tests.crash.workflow_app"])
        self._workers: list[Any] = []
        self._number = 0
        self.invariants = Invariants(kit)

    def worker(self, order: Order = Order(), url: str | None = None) -> Any:  # noqa: B008 it is never changed
        process = self._forks.Process(
            target=work, args=(url or self.kit.url, str(self.folder), order), daemon=True
        )
        process.start()
        self._workers.append(process)
        return process

    def end(self) -> None:
        for process in self._workers:
            process.kill()
        for process in self._workers:
            process.join(30)
        gone = [process.pid for process in self._workers]
        self._workers = []
        self.kit.sql(SILENT, [gone])

    def play(self, program: str, orders: list[Order], url: str | None = None) -> tuple[Ending, bool]:
        """Run it; the first worker gets the first order, and whoever comes after its loss the next. Whether all struck."""
        self._number += 1
        name = f"{program}:{os.getpid()}-{self._number}"
        for file in ("bodies", "points", "struck"):
            (self.folder / file).unlink(missing_ok=True)
        rest = list(orders)
        order = rest.pop(0) if rest else Order()
        current = self.worker(order, url)
        stopped: list[Any] = []
        run = self.flows[program].using(id=name).start(name)

        def step() -> bool:
            nonlocal current, order
            died = not current.is_alive()
            stands = not died and _state(current.pid) == "T"
            if died:
                assert current.exitcode == -signal.SIGKILL
            if died or stands:
                lost, paused = current, order.how == "pause" or (stands and bool(self.kit.sql(HOLDS)))
                self.kit.sql(SILENT, [[lost.pid]])
                order = rest.pop(0) if rest else Order()
                current = self.worker(order, url)
                if stands and paused:
                    wait_until(lambda: self.kit.sql(FENCED, [lost.pid]), "it is fenced")
                    os.kill(lost.pid, signal.SIGCONT)
                elif stands:
                    stopped.append(lost)
            ended = self.push(program, run)
            self.look()
            return ended

        try:
            wait_until(step, f"{name} ends", 60)
            before = self.ending(name, run)
            if stopped:
                for process in stopped:
                    os.kill(process.pid, signal.SIGCONT)
                self.until_back(stopped)
                assert self.ending(name, run) == before, "a stale owner changed something"
            self.bodies_ran_once(run)
        finally:
            self.end()
            self.kit.sql("SELECT holdfast.workflow_terminate(%s, %s)", [program, name])
        return before, len(lines(self.folder / "struck")) == len(orders)

    def look(self) -> None:
        """At what must hold at every moment."""
        self.invariants.look()

    def push(self, program: str, run: Any) -> bool:
        """Send what it waits for; whether it has ended."""
        row = self.kit.sql("SELECT * FROM holdfast.workflow_runs WHERE id = %s", [run.run_id])[0]
        if "go" in (row["waits"] or []):
            # This one was cut off too: the next look sends it again.
            with contextlib.suppress(DatabaseUnavailable):
                if program == "saga":
                    run.cancel("enough")
                else:
                    run.signal(GO(7), idempotency_key="go")
        return row["ended_at"] is not None

    def until_back(self, stopped: list[Any]) -> None:
        """Who stood still has learned that it was fenced, and is there under a new identity."""
        pids = [process.pid for process in stopped]
        back = "SELECT count(*) AS n FROM holdfast.workers WHERE pid = ANY (%s) AND status = 'alive'"
        wait_until(lambda: self.kit.sql(back, [pids])[0]["n"] == len(pids), "who stood still is back")

    def ending(self, name: str, run: Any) -> Ending:
        row = self.kit.sql("SELECT * FROM holdfast.workflow_runs WHERE id = %s", [run.run_id])[0]
        eras = self.kit.sql(
            "SELECT era, steps, signals FROM holdfast.workflow_history WHERE run_id = %s ORDER BY era",
            [run.run_id],
        )
        assert [era["era"] for era in eras] == list(range(row["era"] + 1)), "each era is folded once"
        history = [
            (era["era"], s["key"], s["kind"], s["outcome"], s["ordinal"], _plain(s, name))
            for era in eras
            for s in era["steps"]
        ]
        effects = self.kit.sql(
            "SELECT what FROM effects WHERE run = %s"
            " UNION ALL SELECT type FROM holdfast.events WHERE data->>'run' = %s ORDER BY what",
            [name, name],
        )
        undone = list(dict.fromkeys(b["what"] for b in self.bodies() if b["what"].startswith("undo")))
        return Ending(row["state"], row["result"], sorted(history), [e["what"] for e in effects], undone)

    def bodies(self) -> list[dict[str, Any]]:
        return lines(self.folder / "bodies")

    def bodies_ran_once(self, run: Any) -> None:
        """Under the generation that recorded it a body was begun once; under a later one never."""
        rows = self.kit.sql(
            "SELECT h.era, s.key, s.generation, s.kind FROM holdfast.workflow_history h,"
            " jsonb_to_recordset(h.steps) AS s(key text, generation bigint, kind text)"
            " WHERE h.run_id = %s AND s.kind IN ('step', 'transaction')",
            [run.run_id],
        )
        assert rows

        def key(row: dict[str, Any]) -> str:
            era = f"{row['era']}:" if row["era"] else ""
            return f"{run.run_id}:{era}{row['key']}"

        for row in rows:
            begun = [int(b["fence"].rpartition("-")[2], 16) for b in self.bodies() if b["key"] == key(row)]
            assert [g for g in begun if g > row["generation"]] == [], (row, begun)
            if row["kind"] == "step":
                assert len([g for g in begun if g == row["generation"]]) == 1, (row, begun)


def _plain(step: dict[str, Any], name: str) -> str:
    """What was recorded, without times and the run's own name."""
    result = (
        step["result"]["value"] if step["kind"] == "signal" and step["outcome"] == "done" else step["result"]
    )
    return json.dumps([result, step["error"]]).replace(name, "RUN")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


@pytest.fixture(scope="module")
def theatre(holdfast_server: TestServer) -> Iterator[Theatre]:
    name = holdfast_server.clone()
    app, flows = build(holdfast_server.url(name))
    kit = Kit(app, holdfast_server.url(name), TIMINGS)
    kit.sql(TABLE)
    folder = Path(tempfile.mkdtemp(prefix="hf-workflows-"))
    theatre = Theatre(kit, flows, folder)
    try:
        yield theatre
    finally:
        theatre.end()
        kit.close()
        holdfast_server.drop(name)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def undisturbed(theatre: Theatre) -> dict[str, Ending]:
    found = {program: theatre.play(program, [])[0] for program in theatre.flows}
    assert found["order"].effects == ["crash.reserved", "crash.squared", "reserve"]
    return found


# Each row: the program, and what befalls its owners one after the other.
ROWS = [
    ("order", [Order("claim.after", "kill")]),
    ("order", [Order("body.done", "kill")]),
    ("order", [Order("record.before", "kill"), Order("record.before", "kill")]),
    ("order", [Order("record.done", "kill")]),
    ("order", [Order("transact.before", "kill")]),
    ("order", [Order("transact.done", "kill")]),
    ("order", [Order("suspend.done", "kill")]),
    ("order", [Order("decide.done", "kill")]),
    ("order", [Order("call.done", "kill")]),
    ("order", [Order("child.done", "kill")]),
    ("order", [Order("publish.before", "kill"), Order("publish.done", "kill")]),
    ("order", [Order("publish.done", "kill", 2)]),
    ("order", [Order("publish.before", "pause")]),
    ("saga", [Order("record.done", "kill", 3)]),
    ("fails", [Order("settle.beside", "kill")]),
    ("eras", [Order("era.done", "kill")]),
    ("plain", [Order("transact.before", "kill"), Order("transact.done", "kill")]),
    ("plain", [Order("transact.done", "kill", 2)]),
    ("plain", [Order("transact.before", "cut")]),
    ("steps", [Order("settle.beside", "kill"), Order("settle.before", "kill")]),
    ("steps", [Order("record.done", "kill", 2)]),
    ("steps", [Order("settle.before", "stop")]),
    ("steps", [Order("settle.beside", "cut")]),
    ("order", [Order("record.before", "stop")]),
    ("order", [Order("transact.before", "pause")]),
    ("order", [Order("record.before", "cut")]),
    ("order", [Order("transact.before", "cut")]),
]


def _name(row: object) -> str:
    if isinstance(row, str):
        return row
    assert isinstance(row, list)
    return "+".join(f"{order.point}-{order.how}-{order.nth}" for order in row)


@pytest.mark.parametrize(("program", "orders"), ROWS, ids=_name)
def test_an_owner_is_lost(
    theatre: Theatre, undisturbed: dict[str, Ending], program: str, orders: list[Order]
) -> None:
    ending, struck = theatre.play(program, orders)
    assert struck, "nothing befell it"
    assert ending == undisturbed[program]
    assert theatre.kit.sql(LEFT) == [{"work": 0, "steps": 0, "calls": 0, "open": 0}]


@pytest.mark.parametrize(
    ("which", "broken"),
    [
        ("I1", "UPDATE holdfast.workflow_steps SET result = '2'"),
        ("I2", "UPDATE holdfast.workflow_steps SET generation = 9"),
        ("I4", "DELETE FROM holdfast.work"),
        ("I4", "UPDATE holdfast.workflow_runs SET ended_at = holdfast.now()"),
        ("I5", "UPDATE holdfast.workflow_runs SET waits = '{child:ship}'"),
        ("I6", SENT.format("go", "NULL")),
        ("I7", SENT.format("note", "'nothing'")),
        ("I8", "UPDATE holdfast.workflow_runs SET parent_id = gen_random_uuid(), parent_key = 'ship'"),
    ],
)
def test_the_look_finds_what_must_not_be(kit: Kit, which: str, broken: str) -> None:
    runs = Runs.on(kit.url)
    grant = runs.started()
    runs.record(grant, recorded())
    assert runs.suspend(grant, waits()) == "suspended"
    invariants = Invariants(kit)
    invariants.look()
    runs.conn.execute(broken.encode())
    runs.conn.close()
    with pytest.raises(AssertionError, match=which):
        invariants.look()


@pytest.mark.parametrize(
    ("program", "name", "text"),
    [
        ("order", "holdfast record", "INSERT INTO holdfast.workflow_steps AS s"),
        ("order", "holdfast record", "holdfast.workflow_decide("),
        ("order", "holdfast record", "holdfast.workflow_suspend("),
        ("order", "holdfast settle", "COMMIT"),
        ("order", "holdfast", "COMMIT"),
        ("order", "holdfast", "holdfast.workflow_publish("),
        ("steps", "holdfast settle", "COMMIT"),
    ],
)
def test_the_reply_to_a_write_is_lost(
    theatre: Theatre, undisturbed: dict[str, Ending], program: str, name: str, text: str
) -> None:
    """The server has done it, and nobody heard of it: it counts, and is not done again. `holdfast`: a Transaction step."""
    proxy = Proxy(theatre.kit.url)
    try:
        proxy.cut_after(text, name=name)
        ending, _ = theatre.play(program, [], proxy.url)
        assert proxy.cuts == 1
        assert ending == undisturbed[program]
    finally:
        theatre.end()
        proxy.close()


def test_the_reply_to_the_commit_of_a_plain_transaction_is_lost(
    theatre: Theatre, undisturbed: dict[str, Ending]
) -> None:
    proxy = Proxy(theatre.kit.url)
    try:
        proxy.cut_after("COMMIT", name="holdfast")
        ending, _ = theatre.play("plain", [], proxy.url)
        assert proxy.cuts == 1
        assert ending == undisturbed["plain"]
        assert ending.effects == ["reserve", "reserve"]
    finally:
        theatre.end()
        proxy.close()


def test_a_start_and_a_signal_are_there_exactly_when_they_are_committed(theatre: Theatre) -> None:
    """The sender is lost before its commit: nothing happened. Its reply is lost after it: the same id gives the same run,
    and the same key is the same signal."""
    flow = theatre.flows["order"]
    known = flow.using(id="known").start("known")
    with psycopg.connect(theatre.kit.url) as conn:
        flow.using(id="lost", conn=conn).start("lost")
        assert known.signal(GO(1), idempotency_key="go", conn=conn)
        theatre.kit.sql("SELECT pg_terminate_backend(%s)", [conn.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            conn.commit()
    with pytest.raises(ResultExpired):
        flow.get("lost").state()
    assert theatre.kit.sql(SIGNALS, [known.run_id]) == []
    proxy = Proxy(theatre.kit.url)
    app, flows = build(proxy.url)
    try:
        proxy.cut_after("holdfast.workflow_start(", name="holdfast")
        with pytest.raises(DatabaseUnavailable):
            flows["order"].using(id="lost").start("lost")
        again = flows["order"].using(id="lost").start("lost")
        assert not again.created
        proxy.cut_after("holdfast.workflow_signal(", name="holdfast")
        with pytest.raises(DatabaseUnavailable):
            again.signal(GO(1), idempotency_key="go")
        assert again.signal(GO(1), idempotency_key="go")
        assert theatre.kit.sql(SIGNALS, [again.run_id]) == [{"name": "go"}]
    finally:
        app.close()
        proxy.close()
        for name in ("known", "lost"):
            theatre.kit.sql("SELECT holdfast.workflow_terminate('order', %s)", [name])
    assert theatre.kit.sql(LEFT) == [{"work": 0, "steps": 0, "calls": 0, "open": 0}]


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "stop", "cut"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("program", ["order", "saga", "fails", "eras", "plain", "steps"])
def test_an_owner_is_lost_anywhere(
    theatre: Theatre, undisturbed: dict[str, Ending], program: str, point: str, how: str
) -> None:
    """The whole product, each point at each time that a run comes to it, with its owner lost once and twice there."""
    nth = 1
    if how == "stop" and point in ("transact.before", "settle.beside", "body.begun"):
        how = "pause"  # its open transaction holds the run; body.begun is in one, too
    while True:
        ending, struck = theatre.play(program, [Order(point, how, nth)])
        assert ending == undisturbed[program], nth
        if not struck:
            break
        if how == "kill":
            ending, _ = theatre.play(program, [Order(point, how, nth), Order(point, how, 1)])
            assert ending == undisturbed[program], (nth, "twice")
        assert theatre.kit.sql(LEFT) == [{"work": 0, "steps": 0, "calls": 0, "open": 0}]
        nth += 1
        if point == "claim.after" and nth > 4:
            break  # an idle worker comes there for ever
