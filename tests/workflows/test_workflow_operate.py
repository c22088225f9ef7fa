"""`holdfast workflow`, as a person and as a program use it, over runs whose records are written statement by statement."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.workflows.support import QUEUE, Runs, step, waits
from typer.testing import CliRunner, Result

from holdfast.cli import app as cli
from holdfast.cli.refusals import words as words_of
from holdfast.errors import ConfigurationError, InvalidPayload
from holdfast.model.job import Grant
from holdfast.shapes.workflows import store
from holdfast.shapes.workflows.journal import Record
from holdfast.shapes.workflows.timeline import Entry, timeline

Call = Callable[..., Result]


@pytest.fixture(autouse=True)
def _ann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann")
    monkeypatch.delenv("HOLDFAST_APP", raising=False)


@pytest.fixture
def runs(dsn: str) -> Iterator[Runs]:
    made = Runs.on(dsn)
    yield made
    made.conn.close()


@pytest.fixture
def call(dsn: str) -> Call:
    def run(*words: str, noun: str = "workflow") -> Result:
        result = CliRunner().invoke(cli, [noun, *words, "-d", dsn])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == 0, result.output
        return result

    return run


@pytest.fixture
def refused(dsn: str) -> Callable[..., str]:
    """The message of the mistake that a command ends with."""

    def run(*words: str, noun: str = "workflow") -> str:
        result = CliRunner().invoke(cli, [noun, *words, "-d", dsn])
        assert isinstance(result.exception, ConfigurationError | InvalidPayload), result.output
        said = words_of(result.exception)
        assert "\n" not in said
        return said

    return run


def said(result: Result) -> dict[str, Any]:
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def acts(runs: Runs) -> list[tuple[str, str, dict[str, Any]]]:
    rows = runs.conn.execute("SELECT actor, action, selection FROM holdfast.audit ORDER BY id").fetchall()
    return [(r["actor"], r["action"], r["selection"]) for r in rows]


def end(runs: Runs, grant: Grant, state: str = "completed", error: str | None = None) -> None:
    """As the settle of its job does it."""
    if state == "failed":
        runs.conn.execute(
            "WITH gone AS (DELETE FROM holdfast.work WHERE id = %s RETURNING *)"
            " INSERT INTO holdfast.dead_letters (id, claim_token, seq, lease_generation, available_at, created_at,"
            " claimed_at, died_at, attempts, max_attempts, version, crashes, priority, queue, task, payload, last_error)"
            " SELECT id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, holdfast.now(), attempts,"
            " max_attempts, version, crashes, priority, queue, task, payload, 'boom' FROM gone",
            [grant.id],
        )
    else:
        runs.conn.execute("DELETE FROM holdfast.work WHERE id = %s", [grant.id])
    runs.conn.execute(
        "SELECT holdfast.workflow_end(ARRAY[%s], ARRAY[%s], ARRAY['\"paid\"'], ARRAY[%s])",
        [grant.id, state, error],
    )


def suspended(runs: Runs, key: str, name: str = "decided", **options: Any) -> Grant:
    grant = runs.claim(runs.start(key))
    assert runs.suspend(grant, waits(name, **options)) == "suspended"
    return grant


# Looking ------------------------------------------------------------------------------------------------------------


def test_a_timeline_is_the_same_before_and_after_the_fold(runs: Runs) -> None:
    grant = runs.claim(runs.start("order:1"))
    runs.record(grant, step("reserve", '{"at": "shelf 4"}'), step("g1.0/charge", "995", attempts=3))
    runs.record(
        grant, step("label", None, outcome="failed", error='{"kind": "IOError", "message": "no paper"}')
    )
    before = runs.run(timeline(grant.id))
    end(runs, grant)
    assert runs.steps(grant.id) == []
    assert runs.run(timeline(grant.id)) == before
    assert [(e.n, e.era, e.scope, e.key, e.outcome, e.attempts, e.result, e.error) for e in before] == [
        (0, 0, "", "reserve", "done", 1, {"at": "shelf 4"}, None),
        (1, 0, "g1.0", "g1.0/charge", "done", 3, 995, None),
        (2, 0, "", "label", "failed", 1, None, "IOError: no paper"),
    ]


def test_a_timeline_has_all_eras(runs: Runs) -> None:
    grant = runs.claim(runs.start("order:1"))
    runs.record(grant, step("one"))
    runs.run(store.next_era(grant, 0, "{}"))
    runs.record(grant, step("one"), step("two"))
    assert [(e.era, e.key) for e in runs.run(timeline(grant.id))] == [(0, "one"), (1, "one"), (1, "two")]


def test_what_has_not_ended_is_running_or_retrying_and_the_last_owner_is_known(
    runs: Runs, call: Call
) -> None:
    grant = runs.claim(runs.start("order:1"))
    runs.conn.execute(
        "INSERT INTO holdfast.claims (token, queue, worker, job_ids, claimed_at, lease_expires_at)"
        " VALUES (%s, %s, 'host:1:x', %s, holdfast.now(), holdfast.now() + interval '1 minute')",
        [grant.token, QUEUE, [grant.id]],
    )
    runs.record(grant, step("reserve"), Record("thumbs", "call", "calling", 1))
    runs.record(grant, Record("charge", "step", "retrying", 2, error='{"kind": "Down"}', attempts=2))
    found = said(call("timeline", "order:1", "--json"))["entries"]
    assert [(e["key"], e["outcome"], e["ended_at"] is None, e["worker"]) for e in found] == [
        ("reserve", "done", False, "host:1:x"),
        ("thumbs", "running", True, "host:1:x"),
        ("charge", "retrying", True, "host:1:x"),
    ]
    assert {field.name for field in fields(Entry)} == set(found[0]), "the rows are those of run.timeline()"
    lines = call("show", "order:1").stdout.splitlines()[-2:]
    assert ["▒" in line for line in lines] == [True, True]
    assert "running" in lines[0]
    again = runs.take_over(grant)
    runs.record(again, step("label"))
    assert [e.worker for e in runs.run(timeline(grant.id))] == [None, None, None, None], "no claim has it now"


def test_show_says_how_a_run_stands_and_draws_its_timeline(runs: Runs, call: Call) -> None:
    grant = runs.claim(runs.start("order:1"))
    runs.record(grant, step("reserve"), step("charge", None, outcome="failed", error='{"kind": "Refused"}'))
    runs.record(grant, shown='"half way"')
    runs.signal(grant.id, "hurry")
    until = runs.one("SELECT '2100-01-01Z'::timestamptz")
    assert runs.suspend(grant, waits("decided", until=until)) == "suspended"
    lines = call("show", "order:1").stdout.splitlines()
    assert lines[0] == f"run:       order:1 of checkout version 1, queue {QUEUE}"
    assert "state:     suspended: it waits for signal decided, until 2100-01-01 00:00:00 UTC" in lines
    assert 'says:      "half way"' in lines
    assert "unread:    1 signal: hurry" in lines
    drawn = lines[lines.index("") + 1 :]
    assert [line.split()[0] for line in drawn] == ["reserve", "charge", "signal"]
    assert "█" in drawn[0]
    assert "▓" in drawn[1]
    assert drawn[1].endswith("failed: Refused")
    assert drawn[2].startswith("signal decided |")


def test_show_as_json_gives_the_rows_that_a_dashboard_draws(runs: Runs, call: Call) -> None:
    grant = runs.claim(runs.start("order:1"))
    runs.record(grant, step("reserve", "1"))
    runs.signal(grant.id, "hurry", {"by": "ann"}, "click-1")
    found = said(call("show", "order:1", "--json"))
    assert found["run"]["run_id"] == str(grant.id)
    assert (found["run"]["state"], found["run"]["id"], found["run"]["unread"]) == ("open", "order:1", 1)
    (entry,) = found["entries"]
    assert (entry["key"], entry["kind"], entry["outcome"], entry["result"]) == ("reserve", "step", "done", 1)
    assert {"n", "era", "scope", "began_at", "ended_at", "attempts", "generation", "size", "linked"} <= set(
        entry
    )
    (sent,) = found["signals"]
    assert (sent["name"], sent["payload"], sent["key"], sent["taken_by"]) == (
        "hurry",
        {"by": "ann"},
        "click-1",
        None,
    )
    listing = said(call("timeline", str(grant.id), "--json"))
    assert listing["entries"] == found["entries"]


def test_list_shows_the_newest_first_by_workflow_and_state(runs: Runs, call: Call) -> None:
    one = runs.claim(runs.start("order:1"))
    end(runs, one)
    suspended(runs, "order:2")
    runs.start("order:3")
    found = said(call("list", "--json"))["runs"]
    assert [(r["id"], r["state"]) for r in found] == [
        ("order:3", "open"),
        ("order:2", "suspended"),
        ("order:1", "completed"),
    ]

    def of(*words: str) -> list[str]:
        return [r["id"] for r in said(call("list", *words, "--json"))["runs"]]

    assert of("--state", "suspended", "--state", "completed") == ["order:2", "order:1"]
    assert of("--workflow", "checkout", "-n", "1") == ["order:3"]
    assert of("--workflow", "refund") == []
    runs.start("order:4", tags=["vip"])
    assert of("--tag", "vip") == ["order:4"]
    runs.conn.execute(
        "UPDATE holdfast.workflow_runs SET created_at = created_at - interval '20 s' WHERE key <> 'order:4'"
    )
    assert of("--since", "10s") == ["order:4"]
    assert of("--since", "1h") == ["order:4", "order:3", "order:2", "order:1"]
    runs.conn.execute("DELETE FROM holdfast.workflow_runs WHERE key = 'order:4'")
    page = said(call("list", "-n", "2", "--json"))
    assert of("-n", "2", "--after", page["next"]) == ["order:1"]
    text = call("list").stdout
    assert "signal decided" in text


def test_a_search_for_few_goes_on_while_there_is_time(
    runs: Runs, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspended(runs, "order:1")
    for n in range(2, 8):
        runs.start(f"order:{n}")
    monkeypatch.setattr("holdfast.shapes.workflows.runs.LOOKED_AT", 2)
    page = said(call("list", "--state", "suspended", "--json"))
    assert [r["id"] for r in page["runs"]] == ["order:1"]
    monkeypatch.setattr("holdfast.shapes.workflows.verbs.list_runs.__kwdefaults__", {
        "after": None, "limit": 50, "patience": 0.0,
    })  # fmt: skip
    page = said(call("list", "--state", "suspended", "--json"))
    assert (page["runs"], page["next"] is not None) == ([], True), "it says where to go on"


def test_a_run_is_found_by_either_id_and_two_of_one_name_are_told_apart(
    runs: Runs, call: Call, refused: Callable[..., str]
) -> None:
    run = runs.start("order:1")
    runs.one("SELECT run_id FROM holdfast.workflow_start('refund', '{}', 'order:1', 1, %s)", QUEUE)
    assert refused("show", "order:1") == (
        "several workflows have a run 'order:1': checkout, refund. Say which: --workflow NAME"
    )
    assert said(call("show", "order:1", "-w", "checkout", "--json"))["run"]["run_id"] == str(run)
    assert said(call("show", str(run), "--json"))["run"]["id"] == "order:1"
    for verb in ("show", "timeline", "cancel", "pause", "resume", "retry"):
        assert refused(verb, "order:9") == (
            "there is no run 'order:9', or it ended longer ago than runs are kept. The list: holdfast workflow list"
        )
    assert refused("terminate", "order:9", "--yes").startswith("there is no run 'order:9'")
    assert refused("signal", "order:9", "go").startswith("there is no run 'order:9'")


# Acts ---------------------------------------------------------------------------------------------------------------


def test_a_signal_wakes_the_run_that_waits_for_it(runs: Runs, call: Call) -> None:
    grant = suspended(runs, "order:1")
    text = call("signal", "order:1", "other").stdout
    assert (
        text
        == "Signal other is sent: run order:1 of checkout finds it when it asks for it. It waits for: signal decided.\n"
    )
    assert not runs.is_due(grant.id)
    text = call("signal", "order:1", "decided", '{"yes": true}', "--key", "k1").stdout
    assert text == "Signal decided is sent: run order:1 of checkout waits for it, and continues.\n"
    assert runs.is_due(grant.id)
    assert said(call("signal", "order:1", "decided", "--key", "k1", "--json"))["changed"] is False
    named = {"run": str(grant.id), "workflow": "checkout", "id": "order:1"}
    assert acts(runs) == [
        ("ann", "workflow signal", {**named, "signal": "other"}),
        ("ann", "workflow signal", {**named, "signal": "decided", "key": "k1"}),
    ]


def test_bad_signals_are_refused_in_one_line(
    runs: Runs, refused: Callable[..., str], dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.start("order:1")
    assert refused("signal", "order:1", "go", "{yes}").startswith("the payload is not JSON: ")
    assert refused("signal", "order:1", "no such", "1").startswith(
        "the signal's name must be 1 to 200 letters"
    )
    assert refused("signal", "order:1", "go", "NaN").startswith("the payload is not JSON: ")
    module = f"shop_{uuid4().hex[:8]}"
    (tmp_path / f"{module}.py").write_text(
        "from holdfast import Holdfast\nfrom holdfast.shapes.workflows.messages import Signal\n"
        "from holdfast.shapes.workflows.workflow import Workflow\n"
        f"app = Holdfast({dsn!r})\nGO = Signal('go', int)\n\n\n"
        "@app.workflow(name='checkout')\nasync def checkout(wf: Workflow) -> int:\n    return await wf.signal(GO)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    said = refused("signal", "order:1", "go", '"seven"', "--app", f"{module}:app")
    assert said.startswith("the payload of signal 'go' must be int")
    sys.modules.pop(module, None)
    assert (
        runs.conn.execute("SELECT FROM holdfast.workflow_signals WHERE run_id = %s", [run]).fetchall() == []
    )


def test_cancel_asks_once_and_says_so(runs: Runs, call: Call) -> None:
    grant = suspended(runs, "order:1")
    assert (
        call("cancel", "order:1", "--reason", "fraud").stdout == "Run order:1 of checkout is asked to end.\n"
    )
    assert runs.is_due(grant.id)
    assert call("cancel", "order:1").stdout == "Run order:1 of checkout was asked to end before.\n"
    assert runs.of(grant.id)["cancel_reason"] == "fraud"
    assert "a cancel was asked for at" in call("show", "order:1").stdout
    assert [(action, of.get("reason")) for _, action, of in acts(runs)] == [("workflow cancel", "fraud")]


def test_pause_and_resume(runs: Runs, call: Call) -> None:
    over = runs.one("SELECT holdfast.now() + interval '1 hour'")
    grant = suspended(runs, "order:1", until=over)
    assert call("pause", "order:1").stdout == "Run order:1 of checkout is paused.\n"
    assert call("pause", "order:1").stdout == "Run order:1 of checkout was paused already.\n"
    assert said(call("show", "order:1", "--json"))["run"]["state"] == "paused"
    runs.signal(grant.id, "decided")
    assert not runs.is_due(grant.id)
    assert call("resume", "order:1").stdout == "Run order:1 of checkout is resumed.\n"
    assert call("resume", "order:1").stdout == "Run order:1 of checkout was not paused.\n"
    assert runs.is_due(grant.id)
    assert [action for _, action, _ in acts(runs)] == ["workflow pause", "workflow resume"]


def test_terminate_asks_first_and_names_what_is_not_undone(
    runs: Runs, call: Call, refused: Callable[..., str]
) -> None:
    grant = runs.claim(runs.start("order:1"))
    pushed = [Record(f"saga/{name}", "compensation", "done") for name in ("release", "refund", "apologise")]
    runs.record(grant, *pushed, step("charge"), Record("undo/apologise", "compensation", "done"))
    assert refused("terminate", "order:1") == (
        "this would end run order:1 of checkout without its compensations. Say so: --yes (or look first: --dry-run)"
    )
    wanted = "Run order:1 of checkout would be terminated. 2 compensations not run: refund, release.\n"
    assert call("terminate", "order:1", "--dry-run").stdout == wanted
    assert runs.work(grant.id) is not None
    assert call("terminate", "order:1", "--yes", "--reason", "stuck").stdout == (
        "Run order:1 of checkout is terminated. 2 compensations not run: refund, release.\n"
    )
    assert runs.work(grant.id) is None
    found = said(call("show", "order:1", "--json"))["run"]
    assert (found["state"], found["error"]) == ("terminated", "Terminated: stuck")
    ((_, action, of),) = acts(runs)
    assert (action, of["reason"], of["undone"]) == ("workflow terminate", "stuck", ["refund", "release"])


def test_a_compensation_that_stands_ready_looks_like_no_step_that_ran(runs: Runs, call: Call) -> None:
    grant = runs.claim(runs.start("order:1"))
    runs.record(grant, Record("saga/release", "compensation", "done"), step("charge"))
    lines = {line.split()[0]: line for line in call("show", "order:1").stdout.splitlines() if "|" in line}
    assert lines["saga/release"].endswith("| if it fails")
    assert "·" in lines["saga/release"]
    assert "█" in lines["charge"]


def test_an_ended_run_is_left_alone(runs: Runs, refused: Callable[..., str]) -> None:
    grant = runs.claim(runs.start("order:1"))
    end(runs, grant)
    wanted = (
        f"run 'order:1' of checkout has ended: it completed. What it did: holdfast workflow show {grant.id}"
    )
    for words in (["cancel"], ["pause"], ["resume"], ["retry"], ["terminate", "--yes"]):
        assert refused(words[0], "order:1", *words[1:]) == wanted
    assert refused("signal", "order:1", "go") == wanted
    assert acts(runs) == []


def test_an_act_never_reaches_the_next_run_of_the_same_id(runs: Runs, refused: Callable[..., str]) -> None:
    old = runs.claim(runs.start("order:1"))
    end(runs, old)
    new = runs.start("order:1", if_exists="restart_ended")
    assert new != old.id
    assert "has ended" in refused("cancel", str(old.id))
    assert runs.of(new)["cancel_requested_at"] is None


# Again --------------------------------------------------------------------------------------------------------------


def test_retry_makes_the_failed_steps_at_the_end_again(runs: Runs, call: Call) -> None:
    grant = runs.claim(runs.start("order:1"))
    failed = {"outcome": "failed", "error": '{"kind": "Down"}'}
    runs.record(grant, step("coupon", None, **failed), step("reserve"))
    runs.record(grant, step("charge", None, **failed), step("label", None, **failed))
    end(runs, grant, "failed", '{"kind": "StepFailed", "message": "charge"}')
    assert (
        call("retry", "order:1").stdout
        == "Run order:1 of checkout is tried again. Made again: charge, label.\n"
    )
    assert [row["key"] for row in runs.steps(grant.id)] == ["coupon", "reserve"]
    assert runs.is_due(grant.id)
    found = said(call("show", "order:1", "--json"))["run"]
    assert (found["state"], found["ended_at"], found["error"]) == ("open", None, None)
    ((_, action, of),) = acts(runs)
    assert (action, of["steps"]) == ("workflow retry", ["charge", "label"])


def test_retry_is_refused_where_it_would_do_harm_or_nothing(runs: Runs, refused: Callable[..., str]) -> None:
    grant = runs.claim(runs.start("order:1"))
    assert refused("retry", "order:1") == "run 'order:1' of checkout is open: there is nothing to retry"
    runs.record(grant, step("charge"), Record("undo/refund", "compensation", "done"))
    end(runs, grant, "failed", '{"kind": "StepFailed"}')
    assert "its compensations have run" in refused("retry", "order:1")
    runs.conn.execute("DELETE FROM holdfast.dead_letters")
    other = runs.claim(runs.start("order:2"))
    end(runs, other, "failed", '{"kind": "StepFailed"}')
    runs.conn.execute("DELETE FROM holdfast.dead_letters")
    assert "is no longer among the dead letters" in refused("retry", "order:2")
    assert runs.of(other.id)["state"] == "failed"


def test_retry_takes_up_a_run_that_parted_from_its_code(runs: Runs, call: Call) -> None:
    grant = runs.claim(runs.start("order:1"))
    runs.conn.execute(
        "UPDATE holdfast.work SET status = 'held', hold_reason = 'diverged: at 4' WHERE id = %s", [grant.id]
    )
    runs.conn.execute("UPDATE holdfast.workflow_runs SET state = 'diverged' WHERE id = %s", [grant.id])
    assert said(call("show", "order:1", "--json"))["run"]["state"] == "diverged"
    assert "state:     diverged: diverged: at 4" in call("show", "order:1").stdout
    call("retry", "order:1")
    assert runs.is_due(grant.id)
    assert said(call("show", "order:1", "--json"))["run"]["state"] == "open"


def test_jobs_cancel_names_the_command_for_runs(runs: Runs, refused: Callable[..., str], call: Call) -> None:
    run = runs.start("order:1")
    for verb in ("cancel", "discard"):
        assert refused(verb, str(run), noun="jobs").endswith(
            f"is a run of a workflow: holdfast workflow {'cancel' if verb == 'cancel' else 'terminate'} {run}"
        )
    assert runs.work(run) is not None
    plain = runs.one("SELECT id FROM holdfast.enqueue('plain', '{}', %s)", QUEUE)
    assert isinstance(plain, UUID)
    call("cancel", str(plain), noun="jobs")


def test_a_long_timeline_is_cut_and_counted(runs: Runs, call: Call) -> None:
    grant = runs.claim(runs.start("order:1"))
    runs.record(grant, *[step(f"s{n}") for n in range(205)])
    drawn = call("show", "order:1").stdout.splitlines()
    assert "(5 earlier records: holdfast workflow timeline)" in drawn
    assert len([line for line in drawn if line.startswith("s")]) - len(["state", "started"]) == 200
    assert len(call("timeline", "order:1").stdout.splitlines()) == 206


def test_times_far_away_are_drawn_within_the_line(runs: Runs, call: Call) -> None:
    grant = runs.claim(runs.start("order:1"))
    later = runs.one("SELECT holdfast.now()") + timedelta(days=2)
    runs.record(grant, step("early", began=0.0), step("late", began=later.timestamp()))
    drawn = call("show", "order:1").stdout.splitlines()[-2:]
    assert len({line.index("|", line.index("|") + 1) for line in drawn}) == 1
