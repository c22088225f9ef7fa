"""The one table of states and outcomes: the word for each, its event, its labels, and whether a job ends with it.

A state is where a job is. An outcome is how an attempt ended. The words are plain strings, as the database returns them, so
that comparing one costs a comparison of strings. The sets below are read from the table once, at import.
"""

from typing import Final, NamedTuple

from .outcome import (
    Cancelled,
    Completed,
    DeadLettered,
    Failed,
    Held,
    Lost,
    Misfit,
    Outcome,
    Released,
    SettledElsewhere,
    Snoozed,
    Suspended,
)

PENDING: Final = "pending"
SCHEDULED: Final = "scheduled"  # pending, and due later
PROCESSING: Final = "processing"
HELD: Final = "held"
BLOCKED: Final = "blocked"  # failed, and its key waits for it
QUARANTINED: Final = "quarantined"  # its row makes statements fail
COMPLETED: Final = "completed"
CANCELLED: Final = "cancelled"
DEAD_LETTER: Final = "dead_letter"
PARKED: Final = "parked"  # a dead letter, and its key is parked
RETRY: Final = "retry"
SNOOZED: Final = "snoozed"
RELEASED: Final = "released"
SUSPENDED: Final = "suspended"  # put back by its handler, until an event
LOST: Final = "lost"  # no longer ours
BUSY: Final = "busy"  # another transaction holds the row right now
FAILED: Final = (
    "failed"  # and the job went neither back nor to the dead letters: `state` of the event is the label
)
DISCARDED: Final = "discarded"
WAITING: Final = "waiting"  # not finished, as a producer that waits for the result sees it
GONE: Final = "gone"  # no row is kept: a job that ended, here or under a later owner
OTHER: Final = "other"  # the label of values that have none

JOB_STARTED: Final = "job.started"
JOB_HELD: Final = "job.held"
JOB_QUARANTINED: Final = "job.quarantined"
JOB_COMPLETED: Final = "job.completed"
JOB_CANCELLED: Final = "job.cancelled"
JOB_DEAD_LETTER: Final = "job.dead_letter"
JOB_RETRY: Final = "job.retry"
JOB_SNOOZED: Final = "job.snoozed"
JOB_RELEASED: Final = "job.released"
JOB_SUSPENDED: Final = "job.suspended"
JOB_LOST: Final = "job.lost"
JOB_GONE: Final = "job.gone"
JOB_FAILED: Final = "job.failed"

NEVER: Final = 9999  # the year of a job that is due at an event

QUEUE_JOBS: Final = "queue_jobs"  # the gauge of jobs that are there, by state


class Word(NamedTuple):
    """One state, one outcome, or both."""

    word: str
    event: str = ""  # emitted when a job gets there
    label: str = ""  # `outcome` of holdfast_jobs_settled_total and of a span
    archive: str = ""  # its status in holdfast.archive
    metric: str = ""  # the gauge that counts jobs in this state
    live: bool = False  # a row of holdfast.work
    final: bool = False  # the job has ended, and the next one of its key may start
    dead: bool = False  # no attempt is left
    handled: bool = False  # the handler ended the attempt itself: its run time counts


TABLE: Final = {
    row.word: row
    for row in (
        Word(PENDING, metric=QUEUE_JOBS, live=True),
        Word(SCHEDULED, metric=QUEUE_JOBS, live=True),
        Word(PROCESSING, JOB_STARTED, metric=QUEUE_JOBS, live=True),
        Word(HELD, JOB_HELD, HELD, metric=QUEUE_JOBS, live=True),
        Word(BLOCKED, JOB_DEAD_LETTER, DEAD_LETTER, metric=QUEUE_JOBS, live=True, dead=True),
        Word(QUARANTINED, JOB_QUARANTINED, metric=QUEUE_JOBS, live=True),
        Word(COMPLETED, JOB_COMPLETED, COMPLETED, archive=COMPLETED, final=True, handled=True),
        Word(CANCELLED, JOB_CANCELLED, CANCELLED, archive=CANCELLED, final=True, handled=True),
        Word(
            DEAD_LETTER,
            JOB_DEAD_LETTER,
            DEAD_LETTER,
            metric="dead_letters",
            final=True,
            dead=True,
            handled=True,
        ),
        Word(PARKED, JOB_DEAD_LETTER, DEAD_LETTER, metric="queue_parked_keys", dead=True),
        Word(RETRY, JOB_RETRY, RETRY, handled=True),
        Word(SNOOZED, JOB_SNOOZED, SNOOZED, handled=True),
        Word(SUSPENDED, JOB_SUSPENDED, SUSPENDED, handled=True),
        Word(RELEASED, JOB_RELEASED, RELEASED),
        Word(LOST, JOB_LOST, LOST),
        Word(GONE, JOB_GONE, GONE),
        Word(BUSY),
        Word(FAILED, JOB_FAILED),
    )
}

OUTCOMES: Final[dict[type[Outcome], Word]] = {
    Completed: TABLE[COMPLETED],
    SettledElsewhere: TABLE[COMPLETED],
    Cancelled: TABLE[CANCELLED],
    Failed: TABLE[RETRY],  # while attempts are left
    DeadLettered: TABLE[DEAD_LETTER],
    Snoozed: TABLE[SNOOZED],
    Released: TABLE[RELEASED],
    Suspended: TABLE[SUSPENDED],
    Held: TABLE[HELD],
    Misfit: TABLE[HELD],
    Lost: TABLE[LOST],
}

LIVE: Final = tuple(row.word for row in TABLE.values() if row.live)
FINISHED: Final = tuple(row.word for row in TABLE.values() if row.archive)
STATES: Final = (*LIVE, *FINISHED, DEAD_LETTER)  # of a job that has a row
FINAL: Final = tuple(row.word for row in TABLE.values() if row.final)
DEAD: Final = tuple(row.word for row in TABLE.values() if row.dead)
UNSETTLED: Final = (LOST, BUSY)  # a settle that changed nothing
# What a settle writes into the archive. SettledElsewhere is there already.
ARCHIVED: Final = {
    kind: row.archive for kind, row in OUTCOMES.items() if row.archive and kind is not SettledElsewhere
}
_SHORT: Final = {"dead": DEAD_LETTER}


def word_of(outcome: Outcome) -> Word:
    """Its row in the table. A derived class without a row of its own has that of its base."""
    row = OUTCOMES.get(type(outcome))
    if row is None:
        row = next((OUTCOMES[kind] for kind in type(outcome).__mro__ if kind in OUTCOMES), TABLE[FAILED])
    return row


def state_named(word: str) -> str:
    """The state that a user means: `dead` is short for `dead_letter`."""
    return _SHORT.get(word, word)
