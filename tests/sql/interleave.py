"""Two actors on two real connections, and every order in which their steps can follow each other.

A script is a flow of statements that says BEGIN and COMMIT itself; a step is one statement. The explorer runs the two
scripts of a case again and again, each time in another order, until every order was seen. A step that waits for a lock
of the other actor is pending: it ends by itself once the other has committed, and until then only the other can go on.
So an order that asks for a step of a waiting actor is the same schedule as the one without that request, and is run once.

A statement of the product can also be cut in two: its snapshot is taken, then it waits at a gate, and only the next
step of its actor lets it look for rows to lock. That is the moment between seeing a row and locking it.

Every change of a job or a claim is written down by triggers, in the order of the row locks. The checker reads that
history, the answers that the operations got, and the tables as they were left. It knows nothing of the statements.
"""

import concurrent.futures
import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import tuple_row
from tests.conftest import within

from holdfast.db.executors import run
from holdfast.model.job import ClaimedJob, Grant
from holdfast.model.outcome import Settled
from holdfast.sql import qualified, runs_anywhere
from holdfast.store.statement import Flow, Statement, nothing

Script = Flow[Any]
Mutant = tuple[str, str, str]  # statement, text in it, text instead

BEGIN: Statement[None] = Statement("begin", "BEGIN", (), nothing)
COMMIT: Statement[None] = Statement("commit", "COMMIT", (), nothing)
ROLLBACK: Statement[None] = Statement("rollback", "ROLLBACK", (), nothing)

_NIL = UUID(int=0)
_GATE = 4711
_DEADLINE = within(20.0)

# Steps that take no snapshot and no lock that anyone meets: their place in the order changes nothing.
_FOLDED = ("begin", "effect")

# Where a statement is cut: before it looks for the rows it will lock. Uncorrelated, so it is asked once, first.
_CUTS = {
    "claim": "WHERE EXISTS (SELECT FROM holdfast.workers",
    "claim_these": "WHERE j.queue = $1 AND j.id = ANY ($5",
    "claim_streams": "WHERE j.queue = $1 AND j.ctid = ANY (ARRAY(SELECT place FROM front))",
    "renew": "WHERE c.token = ANY ($1",
    "tidy_claims": "WHERE c.worker = $1",
    "settle_finish": "WHERE w.queue = $1 AND w.id = d.id",
    "settle_done": "WHERE w.queue = $1 AND w.id BETWEEN d.id AND d.id",
    "settle_fail": "WHERE w.queue = $1 AND w.id = d.id",
    "settle_back": "WHERE w.queue = $1 AND w.id = d.id",
    "lock_owned": "WHERE w.queue = $1 AND w.id = $2",
    "guard": "WHERE w.queue = $1 AND w.id = $2",
    "once_put": "WHERE w.queue = $1 AND w.id = $2",
    "revoke_expired": "WHERE c.token = ANY (ARRAY(SELECT token FROM due))",
    "sweep_take": "WHERE w.queue = $1 AND w.id = ANY ($3",
    "sweep_finish": "WHERE c.token = ANY ($1::uuid[])",
    "lock_live": "WHERE queue = $1 AND id = $2",
}


def _as_sent(name: str, text: str) -> str:
    """A piece of a statement, as it stands in what is sent."""
    return qualified(text) if runs_anywhere(name) else text


_HARNESS = """
CREATE SCHEMA harness;
CREATE TABLE harness.log (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, actor text NOT NULL, statement text NOT NULL, kind text NOT NULL,
    op text NOT NULL, id uuid NOT NULL, old jsonb, new jsonb, flag boolean
);
CREATE TABLE harness.effects (
    job uuid NOT NULL, token uuid NOT NULL, actor text NOT NULL DEFAULT current_setting('application_name')
);
CREATE FUNCTION harness.gate(actor int) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_lock_shared(4711, actor);
    PERFORM pg_advisory_unlock_shared(4711, actor);
    RETURN true;
END $$;
-- A function, so that its plans are kept: it runs before every schedule.
CREATE FUNCTION harness.empty() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM holdfast.work; DELETE FROM holdfast.claims; DELETE FROM holdfast.archive; DELETE FROM holdfast.dead_letters;
    DELETE FROM holdfast.errors; DELETE FROM holdfast.once; DELETE FROM holdfast.fences; DELETE FROM holdfast.workers;
    DELETE FROM harness.log; DELETE FROM harness.effects;
END $$;
CREATE FUNCTION harness.statement() RETURNS text LANGUAGE sql AS
    $$ SELECT coalesce(substring(current_query() FROM '^/\\* (\\w+) \\*/'), '-') $$;
-- flag: was the claim that the job carried revoked (or gone) at that moment?
CREATE FUNCTION harness.log_work() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO harness.log (actor, statement, kind, op, id, old, new, flag)
    VALUES (current_setting('application_name'), harness.statement(), 'work', TG_OP,
            coalesce(NEW.id, OLD.id), CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) - 'payload' END,
            CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) - 'payload' END,
            CASE WHEN TG_OP <> 'INSERT' THEN
                NOT EXISTS (SELECT FROM holdfast.claims c WHERE c.token = OLD.claim_token AND c.revoked_at IS NULL) END);
    RETURN NULL;
END $$;
-- flag: does a processing job carry the token at that moment?
CREATE FUNCTION harness.log_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO harness.log (actor, statement, kind, op, id, old, new, flag)
    VALUES (current_setting('application_name'), harness.statement(), 'claim', TG_OP,
            coalesce(NEW.token, OLD.token), CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END,
            CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) || jsonb_build_object(
                'due', OLD.lease_expires_at < holdfast.now()
                       OR EXISTS (SELECT FROM holdfast.workers v WHERE v.id = OLD.worker AND v.status = 'gone')) END,
            EXISTS (SELECT FROM holdfast.work w
                    WHERE w.claim_token = coalesce(NEW.token, OLD.token) AND w.status = 'processing'));
    RETURN NULL;
END $$;
CREATE TRIGGER harness_work_insert AFTER INSERT ON holdfast.work FOR EACH ROW EXECUTE FUNCTION harness.log_work();
CREATE TRIGGER harness_work_change AFTER UPDATE OR DELETE ON holdfast.work
    FOR EACH ROW WHEN (current_setting('application_name') <> 'control') EXECUTE FUNCTION harness.log_work();
CREATE TRIGGER harness_claims AFTER UPDATE OR DELETE ON holdfast.claims
    FOR EACH ROW WHEN (current_setting('application_name') <> 'control') EXECUTE FUNCTION harness.log_claim();
"""

_EMPTY = "SELECT harness.empty();\n"

_READ = """
SELECT (SELECT coalesce(json_agg(json_build_array(l.actor, l.statement, l.kind, l.op, l.id, l.old, l.new, l.flag)
                                 ORDER BY l.n), '[]') FROM harness.log l),
       (SELECT coalesce(json_agg(json_build_array(
                   w.id, w.status, w.lease_generation, w.claim_token, w.cancel_requested_at IS NOT NULL,
                   w.suspect, w.crashes, w.available_at <= holdfast.now())), '[]') FROM holdfast.work w),
       (SELECT coalesce(json_agg(json_build_array(a.id, a.status, a.lease_generation)), '[]') FROM holdfast.archive a),
       (SELECT coalesce(json_agg(json_build_array(d.id, 'dead_letter', d.lease_generation)), '[]')
        FROM holdfast.dead_letters d),
       (SELECT coalesce(json_agg(json_build_array(c.token, c.worker, c.revoked_at IS NOT NULL, c.job_ids,
                                                  c.lease_expires_at < holdfast.now(), c.unsettled)), '[]')
        FROM holdfast.claims c),
       (SELECT coalesce(json_agg(json_build_array(e.job, e.token, e.actor)), '[]') FROM harness.effects e),
       (SELECT coalesce(json_agg(json_build_array(v.id, v.status)), '[]') FROM holdfast.workers v),
       (SELECT coalesce(json_agg(json_build_array(o.job_id, o.name)), '[]') FROM holdfast.once o)
"""


# What a case is made of -------------------------------------------------------------------------------------------


def transaction(flow: Flow[Any] | Statement[Any]) -> Script:
    """BEGIN, every statement of the flow, COMMIT."""
    yield from BEGIN
    answer = yield from flow
    yield from COMMIT
    return answer


def effect(grant: Grant) -> Statement[None]:
    """A write of the handler's own, in the transaction that settles its job."""
    text = "INSERT INTO harness.effects (job, token) VALUES ($1, $2)"
    return Statement("effect", text, (grant.id, grant.token), nothing)


@dataclass(frozen=True)
class Operation:
    """What one actor does. `grants` are those it acts with, where it acts as an owner."""

    name: str
    kind: str  # claim | renew | settle | settle_in | guard | once | sweep | cancel
    script: Callable[[], Script]
    grants: tuple[Grant, ...] = ()
    job: UUID | None = None


@dataclass(frozen=True)
class State:
    """How the tables are when a case begins, as SQL without parameters, and the jobs there are."""

    name: str
    sql: str
    jobs: tuple[UUID, ...]


@dataclass(frozen=True)
class Change:
    """One row of the history."""

    actor: str
    statement: str
    kind: str
    op: str
    id: UUID
    old: Mapping[str, Any]
    new: Mapping[str, Any]
    flag: bool


@dataclass
class Final:
    """History and tables at the end of a schedule."""

    log: list[Change]
    work: list[tuple[Any, ...]]
    archive: list[tuple[Any, ...]]
    dead: list[tuple[Any, ...]]
    claims: list[tuple[Any, ...]]
    effects: list[tuple[Any, ...]]
    workers: list[tuple[Any, ...]]
    once: list[tuple[Any, ...]]


@dataclass
class Schedule:
    """One order of steps as it was run."""

    steps: list[str] = field(default_factory=list)
    choices: list[tuple[int, int]] = field(default_factory=list)  # (taken, how many there were)
    blocked: int = 0
    errors: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return " | ".join(self.steps)


@dataclass
class Tally:
    """What was run, so that nothing can become vacuous unseen."""

    schedules: int = 0
    blocked: int = 0
    taken: int = 0
    refused: int = 0
    busy: int = 0
    claimed: int = 0
    drained: int = 0
    violations: list[str] = field(default_factory=list)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            *(
                getattr(self, name) + getattr(other, name)
                for name in (
                    "schedules",
                    "blocked",
                    "taken",
                    "refused",
                    "busy",
                    "claimed",
                    "drained",
                    "violations",
                )
            )
        )


# Running ----------------------------------------------------------------------------------------------------------


class Actor:
    """One connection with a thread of its own, and the script it follows."""

    def __init__(self, url: str, index: int) -> None:
        self.index = index
        self.name = "AB"[index]
        self.conn = psycopg.connect(url, autocommit=True, application_name=self.name, row_factory=tuple_row)
        self.conn.execute("SET plan_cache_mode = force_custom_plan; SET deadlock_timeout = '100ms'")
        self.pid = self.conn.info.backend_pid
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=f"actor-{self.name}")
        self.future: concurrent.futures.Future[Any] | None = None
        self.at_gate = False
        self.finished = False
        self.answer: Any = None
        self.error = ""
        self._script: Script
        self.next: Statement[Any] = BEGIN

    def start(self, script: Script) -> None:
        self._script = script
        self.future = None
        self.at_gate = self.finished = False
        self.answer = None
        self.error = ""
        self._resume(None)

    def _resume(self, answer: Any) -> None:
        try:
            self.next = self._script.send(answer)
        except StopIteration as done:
            self.finished = True
            self.answer = done.value

    def submit(self, statement: Statement[Any]) -> None:
        self.future = self._thread.submit(run, self.conn, statement)

    def collect(self) -> None:
        """Take the answer of the step that has just ended."""
        assert self.future is not None
        future, self.future = self.future, None
        try:
            answer = future.result()
        except psycopg.Error as error:
            self.error = f"{self.name} {self.next.name}: {type(error).__name__}: {error}".strip()
            self.finished = True
            self.conn.rollback()
            return
        self._resume(answer)

    def abandon(self) -> None:
        """Stop in the middle, whatever the connection is doing."""
        if self.future is not None:
            self.conn.cancel_safe()
            concurrent.futures.wait([self.future])
            self.future = None
        self.conn.rollback()

    def close(self) -> None:
        self._thread.shutdown()
        self.conn.close()


class Harness:
    """The two actors, the control connection, and the rewriting of statements that cuts and breaks them."""

    def __init__(self, url: str) -> None:
        self.control = psycopg.connect(
            url, autocommit=True, application_name="control", row_factory=tuple_row
        )
        self.control.execute(_HARNESS)
        self.control.execute("SET lock_timeout = '20s'")  # nobody holds a lock between two schedules
        self.actors = (Actor(url, 0), Actor(url, 1))
        for actor in self.actors:
            self.control.execute("SELECT pg_advisory_lock(%s, %s)", [_GATE, actor.index])
        self.mutants: tuple[Mutant, ...]
        self.cut: bool
        self.fold: bool
        self._drained: set[str]
        self.whole()

    def whole(self) -> None:
        """Statements as they are, and nothing known of earlier runs."""
        self.mutants = ()
        self.cut = self.fold = False
        self._drained = set()

    def close(self) -> None:
        for actor in self.actors:
            actor.close()
        self.control.close()

    def rewrite(self, statement: Statement[Any], actor: int) -> Statement[Any]:
        """The statement with its name in front (the history shows it), broken and cut as asked."""
        text = statement.text
        for name, *change in self.mutants:
            if name == statement.name:
                old, new = (_as_sent(name, part) for part in change)
                assert old in text, f"{name} does not contain {old!r} any more"
                text = text.replace(old, new)
        if self.cut and statement.name in _CUTS:
            where = _as_sent(statement.name, _CUTS[statement.name])
            assert where in text, f"{statement.name} does not contain {where!r} any more"
            text = text.replace(where, f"WHERE (SELECT harness.gate({actor})) AND {where[6:]}", 1)
        return replace(statement, text=f"/* {statement.name} */ {text}")

    # One schedule

    def play(self, state: State, scripts: Sequence[Script], prefix: Sequence[int]) -> Schedule:
        """Run the scripts: the choices of the prefix first, then always the first actor that can go on."""
        try:
            return self._play(state, scripts, prefix)
        except BaseException:
            for actor in self.actors:  # whoever uses the harness next finds no open transaction
                actor.abandon()
            raise

    def _play(self, state: State, scripts: Sequence[Script], prefix: Sequence[int]) -> Schedule:
        self.control.execute(_EMPTY + state.sql)
        schedule = Schedule()
        for actor, script in zip(self.actors, scripts, strict=True):
            actor.start(script)
        while not all(a.finished for a in self.actors):
            able = [a for a in self.actors if not a.finished and (a.future is None or a.at_gate)]
            if not able:  # each waits for the other: the server ends it
                self._break_circle()
                continue
            at = len(schedule.choices)
            choice = prefix[at] if at < len(prefix) else 0
            assert choice < len(able), f"the same steps went otherwise the second time: {schedule}"
            schedule.choices.append((choice, len(able)))
            self._step(able[choice], schedule)
        schedule.errors = [a.error for a in self.actors if a.error]
        return schedule

    def _step(self, actor: Actor, schedule: Schedule) -> None:
        if actor.at_gate:
            label = f"{actor.name} {actor.next.name} goes on"
            actor.at_gate = False
            self.control.execute("SELECT pg_advisory_unlock(%s, %s)", [_GATE, actor.index])
            self._wait(actor)
            self.control.execute("SELECT pg_advisory_lock(%s, %s)", [_GATE, actor.index])
        else:
            label = f"{actor.name} {actor.next.name}"
            while self.fold and actor.next.name in _FOLDED:
                actor.submit(actor.next)
                self._wait(actor)
                label += f"+{actor.next.name}"
            actor.submit(self.rewrite(actor.next, actor.index))
            self._wait(actor)
        if actor.future is not None:
            label += " (at the gate)" if actor.at_gate else " (waits)"
            schedule.blocked += not actor.at_gate
        schedule.steps.append(label)
        other = self.actors[1 - actor.index]
        if other.future is not None and not other.at_gate:
            self._wait(other)
            if other.future is None:
                schedule.steps.append(f"{other.name} ends its wait")

    def _wait(self, actor: Actor) -> None:
        """Until the step has ended, or the server says that it waits for a lock."""
        assert actor.future is not None
        deadline = time.monotonic() + _DEADLINE
        pause = 0.002  # most steps end sooner, and whoever asks meanwhile takes the core that the step needs
        while time.monotonic() < deadline:
            done, _ = concurrent.futures.wait([actor.future], timeout=pause)
            pause = min(2 * pause, 0.03)
            if done:
                actor.collect()
                return
            row = self.control.execute("SELECT pg_blocking_pids(%s)", [actor.pid]).fetchone()
            assert row is not None
            if self.control.info.backend_pid in row[0]:
                actor.at_gate = True
                return
            if self.actors[1 - actor.index].pid in row[0]:  # and not, say, autovacuum, which ends by itself
                return
        raise AssertionError(f"{actor.name} {actor.next.name} neither ends nor waits for a lock")

    def _break_circle(self) -> None:
        futures = [a.future for a in self.actors if a.future is not None]
        done, _ = concurrent.futures.wait(
            futures, timeout=_DEADLINE, return_when=concurrent.futures.FIRST_COMPLETED
        )
        assert done, "both actors wait and the server does not end it"
        for actor in self.actors:
            if actor.future is not None:
                self._wait(actor)

    # All schedules of a case

    def explore(self, state: State, a: Operation, b: Operation) -> Iterator[Schedule]:
        """Every order once: go back to the last choice that had another way, and take it."""
        prefix: list[int] = []
        while True:
            schedule = self.play(state, (a.script(), b.script()), prefix)
            yield schedule
            choices = schedule.choices
            while choices and choices[-1][0] + 1 >= choices[-1][1]:
                choices.pop()
            if not choices:
                return
            prefix = [taken for taken, _ in choices[:-1]] + [choices[-1][0] + 1]

    def check_pair(
        self,
        state: State,
        a: Operation,
        b: Operation,
        *,
        drain: Callable[[psycopg.Connection[Any]], None] | None = None,
        fold: bool = True,
        stop_at_first: bool = False,
    ) -> Tally:
        """All orders of the pair. With `fold`, and always where statements are cut, BEGIN is no step of its own."""
        tally = Tally()
        self.fold = self.cut or fold
        for schedule in self.explore(state, a, b):
            tally.schedules += 1
            tally.blocked += schedule.blocked > 0
            final = self.read()
            problems = schedule.errors + check(state, final, ((a, self.actors[0]), (b, self.actors[1])))
            count(tally, final, [x.answer for x in self.actors])
            if not problems and drain is not None:
                problems = self._check_drain(state, final, drain, tally)
            if problems:
                where = f"{state.name}: A {a.name} x B {b.name}: {schedule}"
                tally.violations.append(where + "".join(f"\n    {p}" for p in problems))
                if stop_at_first:
                    break
        return tally

    def read(self) -> Final:
        row = self.control.execute(_READ).fetchone()
        assert row is not None
        log = [Change(r[0], r[1], r[2], r[3], UUID(r[4]), r[5] or {}, r[6] or {}, bool(r[7])) for r in row[0]]
        return Final(log, *([tuple(r) for r in part] for part in row[1:]))

    def _check_drain(
        self,
        state: State,
        final: Final,
        drain: Callable[[psycopg.Connection[Any]], None],
        tally: Tally,
    ) -> list[str]:
        """Whatever was left live can be brought to its end by a sweep and a claim. Once per kind of leftover."""
        if not final.work and not final.claims:
            return []
        left = shape_of(final)
        if left in self._drained and not self.mutants:
            return []
        tally.drained += 1
        drain(self.control)
        after = self.read()
        ended = sorted(str(r[0]) for r in after.archive + after.dead)
        if after.work or after.claims or ended != sorted(str(j) for j in state.jobs):
            return [f"not brought to an end by a sweep and a claim: work {after.work}, claims {after.claims}"]
        for job in {UUID(r[0]) for r in final.work if r[4]}:
            if ("cancelled",) not in [(r[1],) for r in after.archive if UUID(r[0]) == job]:
                return [f"the cancel of {job} was forgotten"]
        self._drained.add(left)
        return []


def shape_of(final: Final) -> str:
    """What is left, with tokens made anonymous: equal shapes need no second drain."""
    text = repr((sorted(final.work), sorted(final.claims, key=repr), sorted(final.workers), final.archive))
    seen: dict[str, str] = {}
    return re.sub(
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", lambda m: seen.setdefault(m[0], f"#{len(seen)}"), text
    )


def count(tally: Tally, final: Final, answers: Sequence[Any]) -> None:
    tally.taken += any(c.statement == "sweep_take" and c.kind == "work" for c in final.log)
    tally.claimed += any(c.statement.startswith("claim") and c.kind == "work" for c in final.log)
    settled = [x for a in answers if isinstance(a, list) for x in a if isinstance(x, Settled)]
    tally.refused += any(x.already or x.state == "lost" for x in settled)
    tally.busy += any(x.state == "busy" for x in settled)


# Checking ---------------------------------------------------------------------------------------------------------


def check(state: State, final: Final, done: Sequence[tuple[Operation, Actor]]) -> list[str]:
    """Everything that is wrong with the end of a schedule, in words."""
    problems = [*_places(state, final), *_history(final), *_claim_rows(final)]
    for operation, actor in done:
        if not actor.error:
            mine = [c for c in final.log if c.actor == actor.name]
            problems += _ANSWERS[operation.kind](operation, actor, mine, final)
    return problems


def _places(state: State, final: Final) -> Iterator[str]:
    """Each job is live, archived or dead: exactly one of these, exactly once."""
    found = [UUID(r[0]) for r in final.work + final.archive + final.dead]
    for job in state.jobs:
        if found.count(job) != 1:
            yield f"job {job} is in {found.count(job)} places: work {final.work}, archive {final.archive}, dead {final.dead}"
    for job in set(found) - set(state.jobs):
        yield f"job {job} was invented"
    generations = {UUID(r[0]): r[2] for r in final.work + final.archive + final.dead}
    for change in final.log:
        if change.kind == "work":
            at = (change.new or change.old)["lease_generation"]
            if generations.get(change.id, at) < at:
                yield f"job {change.id} ended with generation {generations[change.id]} below {at}"
    for job_id, token, actor in final.effects:
        ends = [
            c for c in final.log if c.kind == "work" and c.op == "DELETE" and c.id == UUID(job_id) and c.actor == actor
            and c.statement == "settle_finish" and c.old["claim_token"] == token
        ]  # fmt: skip
        if len(ends) != 1:
            yield f"a handler's write for {job_id} committed without the completion of its attempt"


def _history(final: Final) -> Iterator[str]:
    """Each row's changes are steps of the state machine, each allowed to who made it."""
    now: dict[UUID, Mapping[str, Any]] = {}
    tokens: dict[str, str] = {str(_NIL): ""}  # and the moment of the claim that made it
    for change in final.log:
        if change.kind != "work":
            continue
        before = now.get(change.id)
        if change.op != "INSERT" and before != change.old:
            yield f"{change.statement} by {change.actor} changed another row than the last one: {change.old}, last {before}"
        now[change.id] = change.new
        if change.op == "INSERT":
            tokens[change.new["claim_token"]] = ""
            continue
        problem = _transition(change, tokens)
        if problem:
            yield f"{change.statement} by {change.actor} on {change.id}: {problem}"


def _transition(change: Change, tokens: dict[str, str]) -> str:  # noqa: C901 - one line per rule
    old, new, name = change.old, change.new, change.statement
    gone = change.op == "DELETE"
    claimed = name in ("claim", "claim_these")
    if not gone:
        if new["lease_generation"] != old["lease_generation"] + claimed:
            return f"generation {old['lease_generation']} became {new['lease_generation']}"
        if new["attempts"] != old["attempts"] + (name == "settle_fail"):
            return f"attempts {old['attempts']} became {new['attempts']}"
    if claimed:
        if old["status"] == "processing":
            return f"took a job that is owned under {old['claim_token']}"
        moment = f"{change.actor} {new['claimed_at']}"
        if new["status"] != "processing" or tokens.setdefault(new["claim_token"], moment) != moment:
            return "a claim without a token of its own"
        return ""
    if name == "cancel_waiting":
        return "" if gone and old["status"] != "processing" else "ended a running job"
    if old["status"] != "processing":
        return f"changed a job that is {old['status']}"
    if name == "request_cancel":
        same = not gone and all(new[k] == old[k] for k in ("status", "claim_token", "available_at"))
        return "" if same and new["cancel_requested_at"] else "did more than ask"
    if name == "sweep_take":
        if not change.flag:
            return "taken from an owner whose claim is not revoked"
        return "" if gone or new["claim_token"] == str(_NIL) else "taken, but the old owner keeps its token"
    if name not in ("settle_done", "settle_finish", "settle_fail", "settle_back"):
        return "a change by nobody we know"
    if not gone and new["status"] == "processing":
        return "settled, and still processing"
    return ""


def _claim_rows(final: Final) -> Iterator[str]:
    """A processing job has the claim row that leads to it; claim rows go only when no job needs them."""
    claims = {r[0]: r for r in final.claims}
    for row in final.work:
        if row[1] == "processing" and (row[3] not in claims or row[0] not in claims[row[3]][3]):
            yield f"job {row[0]} is processing under {row[3]}, and no claim row leads to it"
    for change in final.log:
        if change.kind == "claim":
            for problem in _claim_change(change):
                yield f"{change.statement} by {change.actor} {problem} ({change.id})"


def _claim_change(change: Change) -> Iterator[str]:
    old, new = change.old, change.new
    if change.op == "DELETE":
        if change.flag:
            yield "deleted a claim row that a processing job carries"
    elif old["revoked_at"] is None:
        if new["revoked_at"] is not None and not new["due"]:
            yield "revoked a claim that is renewed and whose worker lives"
    else:
        if new["revoked_at"] != old["revoked_at"]:
            yield "undid a revocation"
        if new["lease_expires_at"] != old["lease_expires_at"]:
            yield "renewed a revoked claim"


def _of(mine: Sequence[Change], grant: Grant, kinds: str) -> list[Change]:
    return [c for c in mine if c.kind == "work" and c.id == grant.id and c.statement.startswith(kinds)]


def _settle_answers(operation: Operation, actor: Actor, mine: list[Change], final: Final) -> Iterator[str]:
    """One answer per grant; an effective one changed the row it was granted, any other changed nothing."""
    answer: list[Settled] = actor.answer
    by_id = {s.id: s for s in answer}
    if sorted(s.id for s in answer) != sorted(g.id for g in operation.grants):
        yield f"{operation.name}: asked for {operation.grants}, answered {answer}"
        return
    for grant in operation.grants:
        got = by_id[grant.id]
        refused = got.already or got.state in ("lost", "busy")
        yield from _effective(
            operation, grant, "nothing done" if refused else got.state, _of(mine, grant, "settle")
        )
        if got.state == "lost" and _carried(final, grant):
            yield f"{operation.name}: told that {grant.id} is lost, but it carries the token"
        if got.already and not _ended(final, grant):
            yield f"{operation.name}: told that {grant.id} was settled before, but nobody did"


def _ended(final: Final, grant: Grant) -> bool:
    """Was this very attempt ended by a settle?"""
    return any(
        c.old["lease_generation"] == grant.generation and c.old["claim_token"] == str(grant.token)
        for c in _of(final.log, grant, "settle")
    )


def _effective(operation: Operation, grant: Grant, state: str, changes: list[Change]) -> Iterator[str]:
    if state == "nothing done":
        if changes:
            yield f"{operation.name}: was refused, but changed {grant.id}"
        return
    if len(changes) != 1:
        yield f"{operation.name}: answered {state}, and made {len(changes)} changes to {grant.id}"
    for change in changes:
        if (change.old["claim_token"], change.old["lease_generation"]) != (
            str(grant.token),
            grant.generation,
        ):
            yield (
                f"{operation.name}: a stale owner (generation {grant.generation}, {grant.token}) changed {grant.id},"
                f" owned by generation {change.old['lease_generation']}, {change.old['claim_token']}"
            )


def _settle_in_answers(operation: Operation, actor: Actor, mine: list[Change], final: Final) -> Iterator[str]:
    (grant,) = operation.grants
    answer: bool = actor.answer
    state = "completed" if answer else "nothing done"
    yield from _effective(operation, grant, state, _of(mine, grant, "settle"))
    if not answer and _carried(final, grant):
        yield f"{operation.name}: told that {grant.id} is lost, but it carries the token"
    effects = [r for r in final.effects if r[2] == actor.name]
    if len(effects) != bool(answer):
        yield f"{operation.name}: answered {answer}, with {len(effects)} writes of the handler"


def _carried(final: Final, grant: Grant) -> bool:
    return any(
        (r[0], r[1], r[2], r[3]) == (str(grant.id), "processing", grant.generation, str(grant.token))
        for r in final.work
    )


def _renew_answers(operation: Operation, actor: Actor, mine: list[Change], final: Final) -> Iterator[str]:
    lost, _ = actor.answer
    for grant in operation.grants:
        if grant in lost and _carried(final, grant):
            yield f"renew: told that {grant.id} is lost, but it carries the token"
        if grant not in lost and not _ever(final, grant):
            yield f"renew: a stale owner of {grant.id} was not told"
    if any(c.kind == "work" for c in mine):
        yield "renew changed a job"


def _ever(final: Final, grant: Grant) -> bool:
    """Did the row carry this grant at any time since the case began?"""
    wanted = ("processing", grant.generation, str(grant.token))
    rows = [c.new for c in final.log if c.kind == "work" and c.id == grant.id and c.new]
    return any((r["status"], r["lease_generation"], r["claim_token"]) == wanted for r in rows)


def _claim_answers(operation: Operation, actor: Actor, mine: list[Change], final: Final) -> Iterator[str]:
    jobs: list[ClaimedJob] = actor.answer
    changed = {
        (c.id, c.new["lease_generation"], c.new["claim_token"])
        for c in mine
        if c.kind == "work" and c.statement.startswith("claim")
    }
    if {(j.grant.id, j.grant.generation, str(j.grant.token)) for j in jobs} != changed:
        yield f"{operation.name}: answered {[j.grant for j in jobs]}, but took {changed}"


def _guard_answers(operation: Operation, actor: Actor, mine: list[Change], final: Final) -> Iterator[str]:
    """The answer is (did the guard hold, was the job still owned just before the commit)."""
    held, owned = actor.answer
    (grant,) = operation.grants
    if held and not owned:
        yield f"guard: {grant.id} was taken between the guard and the commit"
    if held and not _ever(final, grant):
        yield f"guard: let a stale owner of {grant.id} pass"


def _once_answers(operation: Operation, actor: Actor, mine: list[Change], final: Final) -> Iterator[str]:
    (grant,) = operation.grants
    recorded = [r for r in final.once if UUID(r[0]) == grant.id]
    if bool(recorded) != bool(actor.answer[0]):
        yield f"once: answered {actor.answer}, recorded {recorded}"
    if actor.answer[0] and not _ever(final, grant):
        yield f"once: let a stale owner of {grant.id} record"


def _cancel_answers(operation: Operation, actor: Actor, mine: list[Change], final: Final) -> Iterator[str]:
    """True: it was ended, or its owner was asked. False: it is not live (a finished job stays finished)."""
    answer: bool = actor.answer
    changes = [c for c in mine if c.kind == "work" and c.id == operation.job]
    live = any(UUID(r[0]) == operation.job for r in final.work)
    if bool(answer) != bool(changes):
        yield f"cancel: answered {answer}, with {len(changes)} changes"
    if not answer and live:
        yield f"cancel: answered that {operation.job} is not live, but it is"
    for row in final.work:
        if answer and UUID(row[0]) == operation.job and not row[4]:
            yield f"cancel: {operation.job} is live and not asked to stop"


def _no_answers(operation: Operation, actor: Actor, mine: list[Change], final: Final) -> Iterator[str]:
    yield from ()


_ANSWERS: dict[str, Callable[[Operation, Actor, list[Change], Final], Iterator[str]]] = {
    "claim": _claim_answers,
    "renew": _renew_answers,
    "settle": _settle_answers,
    "settle_in": _settle_in_answers,
    "guard": _guard_answers,
    "once": _once_answers,
    "cancel": _cancel_answers,
    "sweep": _no_answers,
}


# Rows for start states --------------------------------------------------------------------------------------------


def new_id() -> UUID:
    """An id as enqueue makes them: the archive is searched by the day in it."""
    return UUID(int=(int(time.time() * 1000) << 80) | (7 << 76) | (2 << 62) | (uuid4().int & ((1 << 62) - 1)))


def job_row(
    job: UUID, *, generation: int = 0, token: UUID = _NIL, attempts: int = 0, max_attempts: int = 3
) -> str:
    status = "processing" if token != _NIL else "pending"
    return (
        "INSERT INTO holdfast.work (id, queue, task, payload, status, lease_generation, claim_token, attempts, max_attempts,"
        " available_at) VALUES"
        f" ('{job}', 'inbox', 't', '{{}}', '{status}', {generation}, '{token}', {attempts}, {max_attempts},"
        " holdfast.now() - interval '1 minute');\n"
    )


def claim_row(
    token: UUID, worker: str, jobs: Sequence[UUID], *, expired: bool = False, revoked: bool = False
) -> str:
    sign = "-" if expired else "+"
    ids = ", ".join(f"'{j}'" for j in jobs)
    return (
        "INSERT INTO holdfast.claims (token, queue, worker, claimed_at, lease_expires_at, revoked_at, job_ids) VALUES"
        f" ('{token}', 'inbox', '{worker}', holdfast.now(), holdfast.now() {sign} interval '1 hour',"
        f" {'holdfast.now()' if revoked else 'NULL'}, ARRAY[{ids}]::uuid[]);\n"
    )


def worker_row(worker: str, *, status: str = "alive", silent: bool = False) -> str:
    return (
        "INSERT INTO holdfast.workers (id, host, pid, status, last_seen_at, started_at, queues, tasks, concurrency, release)"
        f" VALUES ('{worker}', 'h', 1, '{status}', holdfast.now() - interval '{3600 if silent else 0} seconds',"
        " holdfast.now(), '{inbox}', '{t}', 1, '1');\n"
    )


@contextlib.contextmanager
def harness(url: str) -> Iterator[Harness]:
    made = Harness(url)
    try:
        yield made
    finally:
        made.close()
