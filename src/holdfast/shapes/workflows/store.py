"""The statements of workflows; queries.sql has the text."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from ...model.job import Owned
from ...model.outcome import ErrorText
from ...sql import query_in
from ...store.arrays import int_array, text_array, uuid_array
from ...store.statement import Row, Statement, named, nothing
from .journal import History, Look, NewChild, NewJobs, Record, Started, StartRun, Stored, Wait
from .messages import Message
from .outgoing import NewEvent, event_json
from .rows import columns, row_json, rows_json, texts, values

TABLE = "workflow_runs"  # of the recorder that ends a run with its job


# For handles -----------------------------------------------------------------------------------------------------


def start(run: StartRun, metadata: str | None = None, timeout: float | None = None) -> Statement[Started]:
    params = (run.workflow, run.payload, run.id or None, *_options(run, metadata, timeout))
    return named("workflow_start", params, lambda rows: _started(rows[0]))


def start_with_signal(
    run: StartRun, message: Message, key: str | None, timeout: float | None = None
) -> Statement[tuple[Started, str | None]]:
    """And what became of the signal; None: nothing was started."""

    def decode(rows: Sequence[Row]) -> tuple[Started, str | None]:
        ((*started, sent),) = rows[0]
        return _started((started,)), sent

    options = _options(run, None, timeout)
    params = (run.workflow, run.payload, run.id, *options, message.name, message.payload, key)
    return named("workflow_start_with_signal", params, decode)


def start_many(
    runs: Sequence[StartRun], metadata: str | None = None, timeout: float | None = None
) -> Statement[list[Started]]:
    """Runs of one workflow, all with the options of the first."""
    payloads, ids = [run.payload for run in runs], [run.id or None for run in runs]
    params = (runs[0].workflow, text_array(payloads), text_array(ids), *_options(runs[0], metadata, timeout))
    return named("workflow_start_many", params, lambda rows: [_started(row) for row in rows])


def _options(run: StartRun, metadata: str | None, timeout: float | None) -> tuple[object, ...]:
    tags = text_array(list(run.tags)) if run.tags else None
    return run.version, run.queue, run.if_exists, run.delay, timeout, run.priority, tags, metadata


def _started(row: Row) -> Started:
    ((run_id, created, conflict),) = row
    return Started(UUID(run_id or str(UUID(int=0))), created == "true", conflict)


def _text(rows: Sequence[Row]) -> str:
    return str(rows[0][0][0])


def signal(
    workflow: str, run_id: str, name: str, payload: str, idempotency_key: str | None = None
) -> Statement[str]:
    """sent, duplicate, ended or unknown."""
    return named("workflow_signal", (workflow, run_id, name, payload, idempotency_key), _text)


def cancel(workflow: str, run_id: str, reason: str = "") -> Statement[str]:
    """requested, already, ended or unknown."""
    return named("workflow_cancel", (workflow, run_id, reason), _text)


def act(
    which: Literal["pause", "resume", "terminate"], workflow: str, run_id: str, reason: str = ""
) -> Statement[str]:
    params = (which, workflow, run_id, reason)
    return named("workflow_act", params, lambda rows: str(rows[0][0]))


def look(workflow: str, run_id: str) -> Statement[Look | None]:
    def decode(rows: Sequence[Row]) -> Look | None:
        if not rows:
            return None
        found, state, shown, result, error = rows[0][0]
        said = json.loads(error) if error else None
        text = None if said is None else ErrorText(said["kind"], said.get("message", "")).summary
        return Look(UUID(found), state, shown, result, text)

    return named("workflow_look", (workflow, run_id), decode)


# Writes of owners ----------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """Rows of one run that are written together."""

    grant: Owned
    rows: Sequence[Record]
    shown: str | None = None  # the value that its code set


class Written(NamedTuple):
    at: datetime
    missing: list[int]  # the places of entries that were not written, or not wholly


def _grants(grants: Sequence[Owned]) -> tuple[object, object, object]:
    return (
        uuid_array([grant.id_text for grant in grants]),
        values(grant.generation for grant in grants),
        uuid_array([grant.token_text for grant in grants]),
    )


def record(queue: str, entries: Sequence[Entry]) -> Statement[Written]:
    rows = [row for entry in entries for row in entry.rows]
    said = [entry.shown for entry in entries]
    params = (
        queue,
        *_grants([entry.grant for entry in entries]),
        texts(said),
        int_array([n for n, entry in enumerate(entries, 1) for _ in entry.rows]),
        *columns(rows),
        len(rows),
    )

    def decode(answer: Sequence[Row]) -> Written:
        ((at, written, which, heard),) = answer
        spoken = set(json.loads(heard)) if heard else set()
        mute = {n for n, text in enumerate(said) if text is not None and n + 1 not in spoken}
        if written == len(rows) and not mute:
            return Written(at, [])
        everything = written == len(rows)
        there = {(run, key) for run, key in json.loads(which or "[]")}
        missing = []
        for n, entry in enumerate(entries):
            whole = everything or all((entry.grant.id_text, row.key) in there for row in entry.rows)
            if n in mute or not whole:
                missing.append(n)
        return Written(at, missing)

    return Statement("workflow_record", query_in("workflow_record", queue), params, decode)


class Checked(NamedTuple):
    state: str  # recorded, busy, lost
    at: datetime | None


def check(queue: str, rows: Sequence[tuple[Owned, Record]]) -> Statement[list[Checked]]:
    """Why rows were not written, for each."""
    params = (
        queue,
        *_grants([grant for grant, _ in rows]),
        text_array([row.key for _, row in rows]),
        values(row.outcome for _, row in rows),
        values(row.attempts for _, row in rows),
    )
    return Statement(
        "workflow_check",
        query_in("workflow_check", queue),
        params,
        lambda found: [Checked(*row) for row in found],
    )


class Decision(NamedTuple):
    answer: str  # decided, wait, busy, lost
    stored: Stored | None


def decide(queue: str, asked: Sequence[tuple[Owned, Wait, Sequence[Record]]]) -> Statement[list[Decision]]:
    waits = [wait for _, wait, _ in asked]
    params = (
        queue,
        *_grants([grant for grant, _, _ in asked]),
        text_array([wait.key for wait in waits]),
        values(wait.ordinal for wait in waits),
        values(wait.kind for wait in waits),
        text_array([wait.name for wait in waits]),
        [wait.until for wait in waits],
        values(wait.began for wait in waits),
        values(str(wait.cancellable).lower() for wait in waits),
        text_array([rows_json(rows) if rows else None for _, _, rows in asked]),
    )

    def decode(found: Sequence[Row]) -> list[Decision]:
        return [_decision(wait, row) for wait, row in zip(waits, found, strict=True)]

    return named("workflow_decide", params, decode)


def _decision(wait: Wait, row: Row) -> Decision:
    answer, outcome, result, error, attempts, linked, generation, at = row
    if answer != "decided":
        return Decision(answer, None)
    kind: Any = wait.kind
    made = Record(
        wait.key,
        kind,
        outcome,
        ordinal=wait.ordinal,
        result=result,
        error=error,
        attempts=attempts,
        began=wait.began,
        linked=linked,
    )
    return Decision(answer, Stored(made, generation, at))


def receive(grant: Owned, wait: Wait, rows: Sequence[Record]) -> Statement[tuple[str, Stored | None]]:
    """All waiting signals of a name, and their record: decided, busy or lost."""
    params = (
        grant.queue,
        UUID(grant.id_text),
        grant.generation,
        UUID(grant.token_text),
        wait.key,
        wait.ordinal,
        wait.name,
        wait.began,
        rows_json(rows) if rows else None,
    )

    def decode(found: Sequence[Row]) -> tuple[str, Stored | None]:
        ((answer, result, at),) = found
        if answer != "decided":
            return answer, None
        made = Record(wait.key, "signal", "done", wait.ordinal, result, began=wait.began)
        return answer, Stored(made, grant.generation, at)

    return named("workflow_receive", params, decode)


def suspend(queue: str, asked: Sequence[tuple[Owned, Sequence[Wait]]]) -> Statement[list[str]]:
    """suspended, go_on, busy or lost, for each."""
    untils = [min((w.until for w in waits if w.until is not None), default=None) for _, waits in asked]
    params = (
        queue,
        *_grants([grant for grant, _ in asked]),
        json.dumps([sorted({wait.name for wait in waits if wait.name}) for _, waits in asked]),
        untils,
        values(str(any(wait.cancellable for wait in waits)).lower() for _, waits in asked),
    )
    return named("workflow_suspend", params, lambda rows: [row[0] for row in rows])


class Seen(NamedTuple):
    """An event for a run."""

    unread: int
    last: int
    cancelled: bool
    paused: bool
    why: str | None = None  # it was cancelled


def changed(runs: Sequence[str]) -> Statement[dict[str, Seen]]:
    return named(
        "workflow_changed", (uuid_array(list(runs)),), lambda rows: {r[0]: Seen(*r[1:]) for r in rows}
    )


def _stored(row: Row) -> Stored:
    key, kind, outcome, ordinal, result, error, attempts, began, input_hash, linked, generation, at = row
    found = Record(key, kind, outcome, ordinal, result, error, attempts, began, input_hash, linked)
    return Stored(found, generation, at)


def histories(runs: Sequence[str]) -> Statement[dict[str, tuple[History, bool]]]:
    """By id, each with whether the run has ended: then its job was brought back."""

    def decode(rows: Sequence[Row]) -> dict[str, tuple[History, bool]]:
        found: dict[str, tuple[History, bool]] = {}
        for row in rows:
            run_id, key, version, era, at, cancelled, state, ended, seed, why, paused = row[:11]
            if run_id not in found:
                new = History(key, UUID(run_id), version, era, at, [], cancelled, state, seed, why, paused)
                found[run_id] = (new, ended)
            if row[11] is not None:
                written = found[run_id][0].rows
                assert isinstance(written, list)
                written.append(_stored(row[11:]))
        return found

    return named("workflow_histories", (uuid_array(list(runs)),), decode)


def compensates(grant: Owned, yes: bool) -> Statement[None]:
    """The activity of the run, for people who look at it."""
    states = ("compensating", "open") if yes else ("open", "compensating")
    params = (grant.queue, UUID(grant.id_text), grant.generation, UUID(grant.token_text), *states)
    return named("workflow_compensates", params, nothing)


def reopen(run: UUID) -> Statement[bool]:
    return named("workflow_reopen", (run,), lambda rows: bool(rows[0][0]))


def stored(run: UUID, key: str) -> Statement[Stored | None]:
    return named("workflow_stored", (run, key), lambda rows: _stored(rows[0]) if rows else None)


def lock(grant: Owned, key: str) -> Statement[tuple[str, int | None]]:
    """The owner of the run, and which generation has recorded this key."""

    def decode(rows: Sequence[Row]) -> tuple[str, int | None]:
        ((state, generation),) = rows[0]
        return state, None if generation is None else int(generation)

    params = (grant.queue, UUID(grant.id_text), grant.generation, UUID(grant.token_text), key)
    return named("workflow_lock", params, decode)


def put(grant: Owned, rows: Sequence[Record]) -> Statement[tuple[int, datetime]]:
    """How many of them are new, and when."""

    def decode(found: Sequence[Row]) -> tuple[int, datetime]:
        ((new, at),) = found[0]
        return int(new), datetime.fromisoformat(at)

    return named("workflow_put", (UUID(grant.id_text), grant.generation, rows_json(rows)), decode)


class Answer(NamedTuple):
    answer: str
    child: UUID | None
    at: datetime | None


def child(grant: Owned, new: NewChild, row: Record) -> Statement[Answer]:
    params = (
        grant.queue,
        UUID(grant.id_text),
        grant.generation,
        UUID(grant.token_text),
        row_json(row),
        new.workflow,
        new.payload,
        new.id,
        new.version,
        new.queue,
        new.on_cancel,
    )
    return named("workflow_child", params, lambda rows: Answer(*rows[0]))


def call(grant: Owned, jobs: NewJobs, row: Record) -> Statement[str]:
    """ours, busy, lost, or why the jobs cannot be enqueued."""
    params = (
        grant.queue,
        UUID(grant.id_text),
        grant.generation,
        UUID(grant.token_text),
        row_json(row),
        jobs.specs,
        jobs.many,
        jobs.limit,
    )
    return named("workflow_call", params, lambda rows: str(rows[0][0]))


def publish(
    grant: Owned, rows: Sequence[Record], events: Sequence[NewEvent], shown: str | None
) -> Statement[tuple[str, datetime | None]]:
    """Rows and the events that some of them stand for: ours, busy or lost."""
    params = (
        grant.queue,
        UUID(grant.id_text),
        grant.generation,
        UUID(grant.token_text),
        rows_json(rows),
        "[" + ",".join(map(event_json, events)) + "]",
        shown,
    )
    return named("workflow_publish", params, lambda found: (found[0][0], found[0][1]))


def next_era(
    grant: Owned, era: int, payload: str, unseen: Sequence[str] = ()
) -> Statement[tuple[str, datetime | None]]:
    params = (
        grant.queue,
        UUID(grant.id_text),
        grant.generation,
        UUID(grant.token_text),
        era,
        payload,
        list(unseen),
    )
    return named("workflow_begin_era", params, lambda rows: (rows[0][0], rows[0][1]))
