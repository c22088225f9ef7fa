"""The table of states and outcomes, and those who read it."""

import ast
import itertools
from pathlib import Path

import pytest

from holdfast.model import outcome as outcomes
from holdfast.model import state
from holdfast.model.outcome import (
    Cancelled,
    Completed,
    DeadLettered,
    ErrorText,
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
from holdfast.observe import tracing
from holdfast.observe.metrics import Counts
from holdfast.runtime.child_ends import Crashed
from holdfast.runtime.report import event_of
from holdfast.telemetry import Event

SOURCE = Path(state.__file__).resolve().parents[1]
ERROR = ErrorText("ValueError", "no", "trace")
EACH: tuple[Outcome, ...] = (
    Completed(),
    SettledElsewhere(),
    Cancelled(),
    Failed(ERROR, 3.0),
    Crashed(ERROR, 3.0),
    DeadLettered(ERROR),
    Snoozed(3.0),
    Suspended(),
    Released(),
    Held("why"),
    Misfit("why", "signature"),
    Lost(),
)
ANSWERS = (*state.STATES, state.PARKED, state.LOST)  # of a settle


def test_what_each_state_means() -> None:
    assert state.LIVE == ("pending", "scheduled", "processing", "held", "blocked", "quarantined")
    assert state.FINISHED == ("completed", "cancelled")
    assert (*state.LIVE, "completed", "cancelled", "dead_letter") == state.STATES
    assert set(state.FINAL) == {"completed", "cancelled", "dead_letter"}
    assert set(state.DEAD) == {"dead_letter", "blocked", "parked"}
    assert {Completed: "completed", Cancelled: "cancelled"} == state.ARCHIVED


def test_every_outcome_is_in_the_table() -> None:
    kinds = {
        kind
        for kind in vars(outcomes).values()
        if isinstance(kind, type) and issubclass(kind, Outcome) and kind is not Outcome
    }
    assert set(state.OUTCOMES) == kinds
    assert kinds <= {type(outcome) for outcome in EACH}


def test_a_span_has_the_label_of_the_metric() -> None:
    found = {kind.__name__: label for kind, label in tracing._LABELS.items()}
    assert found == {
        "Completed": "completed",
        "SettledElsewhere": "completed",
        "Cancelled": "cancelled",
        "Failed": "retry",
        "DeadLettered": "dead_letter",
        "Snoozed": "snoozed",
        "Suspended": "suspended",
        "Released": "released",
        "Held": "held",
        "Misfit": "held",
        "Lost": "lost",
    }


def test_a_derived_outcome_has_the_row_of_its_base() -> None:
    assert state.word_of(Crashed(ERROR)) is state.TABLE[state.RETRY]
    assert state.word_of(Outcome()) is state.TABLE[state.FAILED]


@pytest.mark.parametrize(
    ("outcome", "where", "name"),
    [
        (Completed(), "completed", "job.completed"),
        (SettledElsewhere(), "completed", "job.completed"),
        (Cancelled(), "cancelled", "job.cancelled"),
        (Failed(ERROR), "pending", "job.retry"),
        (Failed(ERROR), "dead_letter", "job.dead_letter"),
        (DeadLettered(ERROR), "dead_letter", "job.dead_letter"),
        (DeadLettered(ERROR), "blocked", "job.dead_letter"),
        (DeadLettered(ERROR), "parked", "job.dead_letter"),
        (Failed(ERROR), "cancelled", "job.failed"),
        (DeadLettered(ERROR), "quarantined", "job.failed"),
        (DeadLettered(ERROR), "pending", "job.failed"),
        (Snoozed(1.0), "pending", "job.snoozed"),
        (Released(), "pending", "job.released"),
        (Held("why"), "held", "job.held"),
        (Held("why"), "pending", "job.held"),
        (Misfit("why", "s"), "held", "job.held"),
        (Misfit("why", "s"), "pending", "job.held"),
        (Completed(), "lost", "job.lost"),
    ],
)
def test_the_event_of_an_end(outcome: Outcome, where: str, name: str) -> None:
    assert event_of(outcome, where)[0] == name


def test_every_end_has_an_event_of_the_table_and_is_counted_once() -> None:
    known = {row.event for row in state.TABLE.values() if row.event}
    labels = {row.label for row in state.TABLE.values() if row.label}
    for outcome, where in itertools.product(EACH, ANSWERS):
        name, fields, _ = event_of(outcome, where)
        assert name in known, (outcome, where)
        counts = Counts(["t"])
        counts.on_event(Event(name, {**fields, "queue": "q", "task": "t"}))
        (family,) = [f for f in counts.registry.collect() if f.name == "holdfast_jobs_settled"]
        counted = [s.labels["outcome"] for s in family.samples if s.value == 1 and s.name.endswith("_total")]
        assert len(counted) == 1, (outcome, where)
        assert counted[0] in labels or counted == [where], (outcome, where)


def test_an_outcome_that_the_database_refused_is_counted_where_the_job_went() -> None:
    name, fields, _ = event_of(DeadLettered(ERROR), state.QUARANTINED)
    counts = Counts(["t"])
    counts.on_event(Event(name, {**fields, "queue": "q", "task": "t"}))
    labels = {"queue": "q", "task": "t", "outcome": "quarantined"}
    assert counts.registry.get_sample_value("holdfast_jobs_settled_total", labels) == 1
    assert counts.registry.get_sample_value("holdfast_jobs_quarantined_total") == 0


def test_the_documented_words_are_those_of_the_table() -> None:
    text = (SOURCE.parents[1] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    text = text.partition("\n## States, outcomes and events\n")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    lines = [[cell.strip().strip("`") for cell in row.split("|")[1:-1]] for row in rows]
    documented = [
        (word, final == "yes", event, label) for word, _, final, event, label in filter(None, lines)
    ]
    table = [(row.word, row.final, row.event, row.label) for row in state.TABLE.values()]
    assert documented == [row for row in table if row[0] != state.BUSY]  # which a worker keeps to itself


OWN_WORDS = {  # that are no states there
    "shapes/webhooks/model.py": {"cancelled", "pending"},  # states of deliveries
    "shapes/webhooks/deliver.py": {"cancelled", "pending", "held"},
    # Colours of the lab, and rows and events that its scenes wait for.
    "lab/outside.py": {"held"},
    "bench/wake.py": {"busy"},  # a scenario
    "lab/tape.py": {"held", "job.lost"},
    "lab/acting.py": {"held"},
    "lab/scenes/lost_notification.py": {"held"},
    "lab/scenes/late_commit.py": {"held"},
    "lab/scenes/stale_owner.py": {"held", "job.lost"},
    "lab/scenes/deploy_wave.py": {"held"},
    "lab/scenes/two_housekeepers.py": {"held"},
    "lab/scenes/poison_job.py": {"held"},
    "lab/scenes/cut_the_line.py": {"held"},
    "lab/scenes/old_snapshot.py": {"held"},
    "lab/scenes/one_receipt.py": {"held", "pending", "processing"},
    "lab/scenes/saga.py": {"held"},
    "lab/scenes/crash_and_dedupe.py": {"held"},
    "app.py": {"completed"},  # when a group calls back
    # Colours, labels, and names in data of pages.
    "pages.py": {"held"},
    "shapes/schedules/pages.py": {"held"},
    "shapes/workflows/pages.py": {"cancelled", "completed", "held"},
    "shapes/events/pages.py": {"held"},
    "shapes/webhooks/pages.py": {"cancelled", "held", "pending"},
    "web/acts.py": {"cancelled", "discarded"},
    "web/drawing.py": {"cancelled"},
    "web/views/limits.py": {"held"},
    "web/views/jobs.py": {"held"},
    "web/views/workers.py": {"lost"},
    "web/views/operations.py": {"held"},
    "web/views/drawn.py": {"blocked", "cancelled", "completed", "held", "parked", "quarantined", "scheduled"},
    "web/views/overview.py": {"completed"},
    "web/views/queues.py": {"held"},
    "web/views/one_job.py": {"held"},
    "web/views/keys.py": {"blocked", "held"},
    "tasks/group.py": {"completed"},
    "cli/advice.py": {"blocked"},  # a code
    "cli/keys.py": {"blocked", "held", "released"},  # commands, and what they did
    "operate/keys.py": {"released"},
    "cli/group.py": {"discarded"},  # a number of jobs
    "cli/migrate.py": {"pending"},  # migrations
    "operate/job_acts.py": {"completed"},  # in a sentence
    "operate/edit.py": {"completed"},
    "operate/explain.py": {"blocked", "completed", "cancelled", "scheduled", "snoozed", "held", "quarantined"},  # codes
    "operate/doctor/jobs.py": {"quarantined"},
    "operate/runbook.py": {"completed", "lost", "held", "blocked"},  # columns of views
    "runtime/inflight.py": {"lost"},  # a type
    "shapes/events/project.py": {"parked"},  # kinds of failures
    "follow.py": {"parked"},
    "shapes/receiver/consume.py": {"parked"},
    "shapes/receiver/receiver.py": {"parked"},
    "shapes/receiver/declare.py": {"dead_letter"},
    "shapes/receiver/intake.py": {"parked"},
    "shapes/relays/relay.py": {"parked"},
    "shapes/relays/aside.py": {"parked"},
    "shapes/events/calling.py": {"held"},  # a phase
    "shapes/events/checks.py": {"parked"},  # of events
    "shapes/workflows/bars.py": {"completed", "held"},  # of runs and steps
    "shapes/workflows/calls.py": {"cancelled"},  # of runs and steps
    "shapes/workflows/core.py": {"cancelled"},  # of runs and steps
    "shapes/workflows/database_journal.py": {"cancelled"},  # of runs and steps
    "shapes/workflows/ends.py": {"cancelled", "completed"},  # of runs and steps
    "shapes/workflows/explaining.py": {"cancelled", "held", "scheduled", "snoozed"},  # codes of explain
    "shapes/workflows/finding.py": {"cancelled", "completed"},  # of runs and steps
    "shapes/workflows/handles.py": {"cancelled", "completed"},  # of runs and steps
    "shapes/workflows/journal.py": {"cancelled"},  # of runs and steps
    "shapes/workflows/measure.py": {"cancelled", "completed"},  # of runs and steps
    "shapes/workflows/retries.py": {"held"},  # of runs and steps
    "shapes/workflows/states.py": {"cancelled", "completed"},  # of runs
    "shapes/workflows/timeline.py": {"cancelled"},  # of runs and steps
    "shapes/workflows/health.py": {"lost"},  # of runs and steps
}  # fmt: skip


def test_nobody_spells_a_state_or_its_event_again() -> None:
    names = {state.SNOOZED, state.BUSY, state.RELEASED, state.DISCARDED}
    words = {*ANSWERS, *names, *(row.event for row in state.TABLE.values() if row.event)}
    for file in SOURCE.rglob("*.py"):
        name = file.relative_to(SOURCE).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        if name != "model/state.py":
            assert found & words == OWN_WORDS.get(name, set()), name
