"""The runbook's questions: ask one, and judge its rows. docs/runbook.md says what to do.

The thresholds are the doctor's, and each question names the doctor's checks of the same matter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from ..db.faults import LockTimeout
from ..errors import ConfigurationError
from ..model.state import SCHEDULED
from ..store import runbook
from ..store.runbook import QUESTIONS, Line, Question
from ..tasks.checks import queue_name
from .advice import Advice, advise
from .doctor.thresholds import Limits
from .procedure import Procedure, run
from .refusal import NoQueue, Refused, Unanswered
from .wording import several, some, span

MOST_ROWS = 10_000  # rows of one question

_HIDDEN = " (sessions of other roles show only to members of pg_monitor)"


@dataclass(frozen=True, slots=True)
class Answer:
    name: str
    view: str
    columns: tuple[str, ...]
    rows: list[Line]
    good: bool
    found: str  # what these rows say
    expected: str  # what good looks like
    checks: tuple[str, ...]  # the doctor's checks of the same matter
    advice: list[Advice]  # related questions


def ask(
    name: str, *, queue: str | None = None, limit: int = 50, limits: Limits | None = None
) -> Procedure[Answer]:
    """Run one question of the runbook."""
    question = find(name, queue, limit)
    try:
        rows = yield from run(lambda: runbook.ask(question, queue, limit))
        if not rows and queue is not None:
            yield from _must_exist(queue)
    except LockTimeout as error:
        text = (
            f"{question.view} gave no answer within a minute ({error}). "
            "Somebody may hold a lock on its tables, or the server is very busy"
        )
        raise Unanswered("too_slow", text, view=question.view) from None
    judge = _JUDGES[name]
    chosen = limits or Limits()
    found = judge.wrong(rows, chosen) if rows else None
    part = f" (of the first {limit} rows)" if len(rows) >= limit else ""
    return Answer(
        name=name,
        view=question.view,
        columns=question.columns,
        rows=rows,
        good=found is None,
        found=(found or (judge.right if rows else judge.none)) + part,
        expected=judge.expected.format(limits=chosen, minutes=chosen.horizon / 60),
        checks=judge.checks,
        advice=[] if rows and found is None else _advice(judge, bool(rows)),
    )


def _advice(judge: "_Judge", any_rows: bool) -> list[Advice]:
    if not any_rows:
        return list(judge.when_none)
    return [*judge.when_wrong, *(advise("check", name=name) for name in judge.checks)]


def _must_exist(queue: str) -> Procedure[None]:
    """A queue that does not exist shows nothing. A monitoring role may read this view, which lists them all."""
    lines = yield from run(lambda: runbook.ask(QUESTIONS["oldest-due"], None, MOST_ROWS))
    names = [line["queue"] for line in lines]
    if queue not in names:
        raise NoQueue(queue, names)


def sql_of(name: str, *, queue: str | None = None, limit: int = 50) -> str:
    """The query behind a question, for psql; needs no connection."""
    return runbook.plain_sql(find(name, queue, limit), queue, limit)


def find(name: str, queue: str | None = None, limit: int = 50) -> Question:
    if name not in QUESTIONS:
        close = get_close_matches(name, QUESTIONS, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigurationError(f"the runbook has no query {name!r} (it has: {', '.join(QUESTIONS)}).{hint}")
    if not 1 <= limit <= MOST_ROWS:
        raise Refused(
            "limit", f"limit must be between 1 and {MOST_ROWS}, not {limit}", most=MOST_ROWS, limit=limit
        )
    if queue is not None:
        queue_name(queue, ConfigurationError)
        if not QUESTIONS[name].by_queue:
            raise Refused("not_by_queue", f"{name} is not about a queue", name=name)
    return QUESTIONS[name]


# Judgement --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Judge:
    expected: str  # what good looks like
    wrong: Callable[[list[Line], Limits], str | None]  # what is wrong with these rows, if anything is
    none: str  # what it means that there are no rows
    right: str = ""  # what rows mean that nothing is wrong with
    checks: tuple[str, ...] = ()  # of the doctor, about the same
    when_none: tuple[Advice, ...] = ()
    when_wrong: tuple[Advice, ...] = ()


def _oldest_due(rows: list[Line], limits: Limits) -> str | None:
    late = [r for r in rows if limits.is_late(r["age_seconds"])]
    if not late:
        return None
    return "waiting for " + some(
        f"{span(r['age_seconds'])} in {r['queue']}{' (paused)' if r['paused'] else ''}" for r in late
    )


def _throughput(rows: list[Line], limits: Limits) -> str | None:
    failed = sum(r["failed"] for r in rows)
    attempts = failed + sum(r["completed"] for r in rows)
    if not limits.is_failing(failed, attempts):
        return None
    return f"{failed:,} of {several(attempts, 'attempt')} failed"


def _worker_jobs(rows: list[Line], _: Limits) -> str | None:
    late = [r for r in rows if r["worker_status"] in (None, "gone") or r["lease_left_seconds"] < 0]
    if not late:
        return None
    who = some(dict.fromkeys(r["worker"] for r in late), 3)
    return f"{several(len(late), 'job')} held by a worker that is gone or late with its lease: {who}"


def _expired_claims(rows: list[Line], _: Limits) -> str | None:
    jobs = sum(r["jobs"] for r in rows)
    return f"{several(jobs, 'job')} in {several(len(rows), 'claim')}, expired for up to {span(rows[0]['expired_seconds'])}"


def _stranded_jobs(rows: list[Line], _: Limits) -> str | None:
    return f"{several(len(rows), 'job')}, the first {rows[0]['id']}"


def _attempts(rows: list[Line], _: Limits) -> str | None:
    crashed = [r for r in rows if r["most_crashes"] or r["suspects"]]
    last = [r for r in rows if r["attempts"] + 1 >= r["max_attempts"] > 1]
    said = []
    if crashed:
        said.append(f"processes died with jobs of {some(dict.fromkeys(r['task'] for r in crashed))}")
    if last:
        jobs = several(sum(r["jobs"] for r in last), "job")
        said.append(
            f"{jobs} of {some(dict.fromkeys(r['task'] for r in last))} one failure from the dead letters"
        )
    return "; ".join(said) or None


def _dead_letters(rows: list[Line], _: Limits) -> str | None:
    by_task: dict[str, int] = {}
    for row in rows:
        by_task[row["task"]] = by_task.get(row["task"], 0) + row["dead"]
    return some(f"{count:,} of {task}" for task, count in by_task.items())


def _lost_workers(rows: list[Line], _: Limits) -> str | None:
    return some(f"{r['lost']:,} on {r['host']} (alive for {span(r['mean_life_seconds'])})" for r in rows)


def _keys(rows: list[Line], _: Limits) -> str | None:
    stuck = [r for r in rows if r["because"] and r["because"] != SCHEDULED]
    bad = [r for r in rows if r not in stuck and (r["held"] or r["blocked"] or r["most_attempts"] > 1)]
    said = []
    if stuck:
        names = some(f"{r['partition_key']} in {r['queue']} ({r['because']})" for r in stuck)
        said.append(f"does not move: {names}")
    if bad:
        said.append(
            "held or failing again and again: " + some(f"{r['partition_key']} in {r['queue']}" for r in bad)
        )
    return "; ".join(said) or None


def _storage(rows: list[Line], limits: Limits) -> str | None:
    dead = [r for r in rows if limits.has_dead_rows(r["dead_rows"])]
    old = [r for r in rows if limits.is_unfrozen(r["xid_age"])]
    said = []
    if dead:
        said.append(f"many dead rows in {some(r['relation'] for r in dead)}")
    if old:
        said.append(f"not frozen for too long: {some(r['relation'] for r in old)}")
    return "; ".join(said) or None


def _horizon(rows: list[Line], limits: Limits) -> str | None:
    slots = [
        r for r in rows if r["kind"] == "replication slot" and limits.is_behind(r["xid_age"], r["wal_bytes"])
    ]
    open_ = [r for r in rows if limits.is_open_long(r["seconds"])]
    said = [f"{r['kind']} {r['name']} open for {span(r['seconds'])}" for r in open_]
    said += [
        f"replication slot {r['name']} {r['state']} and far behind, keeps {r['wal_bytes'] or 0:,} bytes of WAL"
        for r in slots
    ]
    return some(said) or None


_JUDGES = {
    "oldest-due": _Judge(
        "no due job waits for {limits.stuck:g} seconds or more",
        _oldest_due,
        "there are no queues",
        "nothing waits long",
        checks=("workers",),
    ),
    "throughput": _Judge(
        "every minute that has work completes some, and at most {limits.failing:.0%} of the attempts fail",
        _throughput,
        "nothing was finished in the last hour, which is right only if nothing was due",
        "work is done, and few attempts or none failed",
        when_none=(advise("ask", name="oldest-due"),),
    ),
    "worker-jobs": _Judge(
        "every job is held by a worker that lives and renews its lease",
        _worker_jobs,
        "nothing is running",
        "every holder lives and renews",
        checks=("stuck",),
    ),
    "expired-claims": _Judge(
        "none, or gone when you look again a few seconds later",
        _expired_claims,
        "no lease has run out",
        checks=("stuck",),
    ),
    "stranded-jobs": _Judge(
        "none, ever",
        _stranded_jobs,
        "every job in processing has its claim",
        checks=("stranded",),
    ),
    "attempts": _Judge(
        "no process died with a job, and no job is one failure from the dead letters",
        _attempts,
        "no live job has failed",
        "failures are being retried",
    ),
    "dead-letters": _Judge(
        "none",
        _dead_letters,
        "there are no dead letters",
        checks=("dead",),
    ),
    "lost-workers": _Judge(
        "none, but for machines you took away yourself", _lost_workers, "no worker vanished in the last hour"
    ),
    "keys": _Judge(
        "no key has held or blocked jobs, is parked, or has jobs that failed twice",
        _keys,
        "no live job has a partition key",
        "no key stands out by its failures",
        checks=("keys",),
        when_wrong=(advise("stuck_keys"),),
    ),
    "storage": _Judge(
        "no table has {limits.dead_rows:,.0f} dead rows or more, and all are frozen in time",
        _storage,
        "there are no tables",
        "vacuum keeps up",
        checks=("vacuum",),
    ),
    "horizon": _Judge(
        "no transaction is open for {minutes:g} minutes or more, and every replication slot is read",
        _horizon,
        f"nobody holds it back{_HIDDEN}",
        f"nobody holds it back for long{_HIDDEN}",
        checks=("horizon",),
    ),
}
