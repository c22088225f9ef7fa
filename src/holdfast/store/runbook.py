"""The support queries: one question, one view, one bounded query of it with the worst first."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..sql import query
from .statement import Flow, Row, Statement, named, nothing

Line = dict[str, Any]  # column -> value

_TIMEOUT = 60.0  # seconds; some views read every live job once
_BY_QUEUE = re.compile(r"WHERE \(\$1::text IS NULL OR queue = \$1\)\n( +AND )?")
_PARAMETERS = re.compile(r"^-- \$1.*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Question:
    name: str  # on the command line
    view: str
    asks: str
    text: Callable[[], str]
    columns: tuple[str, ...]
    by_queue: bool = True
    by_index: bool = False  # quick, however much waits


def _question(
    name: str, view: str, asks: str, text: Callable[[], str], columns: str, **kind: bool
) -> Question:
    return Question(name, f"holdfast.{view}", asks, text, tuple(columns.split()), **kind)


_ALL = (
    _question(
        "oldest-due",
        "oldest_due",
        "how long the oldest due job of each queue has waited",
        lambda: query("runbook_oldest_due"),
        "queue age_seconds paused due_at job_id task",
        by_index=True,
    ),
    _question(
        "throughput",
        "throughput_per_minute",
        "what each queue finished in each minute of the last hour",
        lambda: query("runbook_throughput"),
        "minute queue completed failed dead cancelled mean_run mean_wait max_wait",
    ),
    _question(
        "worker-jobs",
        "worker_jobs",
        "what each worker holds right now",
        lambda: query("runbook_worker_jobs"),
        "worker worker_status silent_seconds queue job_id task partition_key attempts held_seconds lease_left_seconds",
        by_index=True,
    ),
    _question(
        "expired-claims",
        "expired_claims",
        "jobs in processing whose lease has run out",
        lambda: query("runbook_expired_claims"),
        "queue worker worker_status silent_seconds expired_seconds revoked_at jobs job_ids",
        by_index=True,
    ),
    _question(
        "stranded-jobs",
        "stranded_jobs",
        "jobs in processing that no claim holds",
        lambda: query("runbook_stranded_jobs"),
        "id queue task claimed_at claim_token",
    ),
    _question(
        "attempts",
        "attempts",
        "live jobs that failed before, by attempts spent",
        lambda: query("runbook_attempts"),
        "queue task attempts max_attempts jobs processing suspects most_crashes next_at latest_job_id latest_error",
    ),
    _question(
        "dead-letters",
        "dead_letters_by_task",
        "dead letters by task and key, with the latest error",
        lambda: query("runbook_dead_letters"),
        "queue task partition_key dead first_died_at last_died_at latest_job_id latest_error",
    ),
    _question(
        "lost-workers",
        "lost_workers",
        "workers that vanished in the last hour, by host",
        lambda: query("runbook_lost_workers"),
        "host release lost last_lost_at mean_life_seconds",
        by_queue=False,
    ),
    _question(
        "keys",
        "keys",
        "live jobs by partition key, with the latest error of each",
        lambda: query("runbook_keys"),
        "queue partition_key waiting due processing held blocked oldest_due_at most_attempts first_job_id in_the_way because"
        " latest_error",
    ),
    _question(
        "storage",
        "storage",
        "what uses the space",
        lambda: query("runbook_storage"),
        "relation bytes about_rows dead_rows vacuumed_at xid_age archive_day",
        by_queue=False,
    ),
    _question(
        "horizon",
        "horizon",
        "what keeps dead rows and old WAL from being removed",
        lambda: query("runbook_horizon"),
        "kind name owner application state since seconds xid_age wal_bytes",
        by_queue=False,
    ),
)
QUESTIONS = {question.name: question for question in _ALL}


def ask(question: Question, queue: str | None, limit: int) -> Flow[list[Line]]:
    """The rows, the worst first; read in a transaction that cannot change anything."""
    setup = f"{round(_TIMEOUT * 1000)}", question.by_index
    yield from named("runbook_begin", setup, nothing)
    params = (queue, limit) if question.by_queue else (limit,)

    def decode(rows: Sequence[Row]) -> list[Line]:
        return [dict(zip(question.columns, row, strict=True)) for row in rows]

    lines = yield from Statement("runbook", question.text(), params, decode)
    return lines


def plain_sql(question: Question, queue: str | None, limit: int) -> str:
    """The same as text for psql. `queue` must be a queue's name: it is put between quotes as it is."""

    def where(found: re.Match[str]) -> str:
        if queue is None:
            return "WHERE " if found[1] else ""
        return f"WHERE queue = '{queue}'\n{found[1] or ''}"

    text = _PARAMETERS.sub("", question.text(), count=1)
    text = _BY_QUEUE.sub(where, text)
    return text.replace("LIMIT $2" if question.by_queue else "LIMIT $1", f"LIMIT {limit}") + ";"
