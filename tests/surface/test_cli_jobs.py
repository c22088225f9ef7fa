"""`holdfast jobs`, `archive` and `audit`, as a person and as a program use them."""

import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.surface.commands import every_command
from tests.surface.running import Cli, unsafe

from holdfast import Holdfast, Job
from holdfast.operate import bulk, preview, search
from holdfast.operate.bulk import Batches
from holdfast.operate.procedure import Procedure
from holdfast.testing import Kit

NASTY = "\x1b[31mred\x07\x9b2J\u202e"
ALL_STATES = "pending, scheduled, processing, held, blocked, quarantined, completed, cancelled, dead_letter"


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann@desk")
    return Cli(dsn, monkeypatch)


@pytest.fixture
def shop(app: Holdfast, kit: Kit) -> Kit:
    """Two tasks; `bad` fails with an error that would like to drive the terminal."""

    @app.task
    def good(job: Job, text: str) -> str:
        job.once("step " + text, lambda: 1)
        return text

    @app.task(max_attempts=1)
    def bad(text: str) -> None:
        raise ValueError(f"cannot\n{text}")

    return kit


def send(kit: Kit, count: int = 1, task: str = "good", **options: Any) -> list[str]:
    return [str(kit.app.send(task, {"text": str(n)}, **options).id) for n in range(count)]


def state(kit: Kit, job_id: str) -> str:
    return str(kit.job(UUID(job_id))["status"])


# Looks ------------------------------------------------------------------------------------------------------------


def test_jobs_list(shop: Kit, cli: Cli) -> None:
    assert cli.text("jobs", "list") == "No jobs.\n"
    cli.text("queue", "create", "outbox")
    ids = send(shop, 3)
    shop.run_worker()
    (later,) = send(shop, task="bad", run_after=60, partition_key="order:1", tags=["vip"])
    lines = cli.text("jobs", "list").splitlines()
    assert lines[0].split() == ["id", "queue", "task", "state", "attempts", "created", "note"]
    assert [line.split()[0] for line in lines[1:]] == [later, *reversed(ids)]
    assert lines[1].split()[1:5] == ["inbox", "bad", "scheduled", "0/1"]
    every = [
        "-s",
        "scheduled",
        "-q",
        "inbox",
        "-t",
        "bad",
        "-k",
        "order:1",
        "--tag",
        "vip",
        "--newer-than",
        "1h",
    ]
    assert cli.text("jobs", "list", *every).count("\n") == 2
    for other in ("-s pending", "-q outbox", "-t good", "-k order:2", "--tag vi", "-e x", "--older-than 30m"):
        assert cli.text("jobs", "list", *every, *other.split()) == "No jobs.\n", other

    first = cli.text("jobs", "list", "-s", "completed", "-n", "2")
    assert first.splitlines()[-1] == f"There may be more: --after {ids[1]}"
    page = cli.json("jobs", "list", "-s", "completed", "-n", "2", "--after", ids[1])
    assert [job["id"] for job in page["jobs"]] == [ids[0]]
    assert (page["next"], page["cut"]) == (None, False)


def test_dead_is_taken_for_dead_letter_in_every_command_with_a_state(shop: Kit, cli: Cli) -> None:
    (dead,) = send(shop, task="bad")
    shop.run_worker()
    send(shop)
    options = {name: {o for p in command.params for o in p.opts} for name, command in every_command().items()}
    places = {name: given for name, given in options.items() if "--state" in given}
    for other in ("workflow list", "operations list"):  # which have states of their own
        del places[other]
    assert places.keys() >= {"jobs list", "jobs retry", "jobs cancel", "jobs discard", "archive search"}
    for name, given in places.items():
        words = [*name.split(), "--json", *({"--dry-run"} & given), "--state"]
        short = cli(*words, "dead")
        assert short == cli(*words, "dead_letter"), name
        assert short.code == (2 if name in ("jobs cancel", "archive search") else 0), name
    assert [job["id"] for job in cli.json("jobs", "list", "--state", "dead")["jobs"]] == [dead]
    cli.text("jobs", "retry", "--state", "dead", "--yes")
    assert state(shop, dead) == "pending"
    (act,) = [entry for entry in cli.json("audit")["audit"] if entry["action"] == "jobs retry"]
    assert act["selection"]["states"] == ["dead_letter"]


def test_filters_that_make_no_sense(kit: Kit, cli: Cli) -> None:
    wrong = {
        ("-s", "done"): f"there is no state 'done' (known: {ALL_STATES})",
        (
            "--older-than",
            "soon",
        ): "--older-than 'soon' is no span of time. Write 90s, 15m, 2h, 3d or plain seconds",
        (
            "--newer-than",
            "-5",
        ): "--newer-than '-5' is no span of time. Write 90s, 15m, 2h, 3d or plain seconds",
        ("--older-than", "2h", "--newer-than", "1h"): (
            "nothing is older than 7200 s and newer than 3600 s. Give newer_than the longer time"
        ),
        ("-t", "\udcff"): "task '\\udcff' is not valid text. Leave out NUL and broken characters",
        ("-n", "0"): "limit must be between 1 and 1000, not 0",
    }
    for words, said in wrong.items():
        assert cli.refused("jobs", "list", *words) == said
    assert cli("jobs", "list", "--after", "x").code == 2
    assert cli("audit", "--before", "9" * 30).code == 2
    assert cli("jobs", "show", "x").code == 2


def test_jobs_show(shop: Kit, cli: Cli) -> None:
    good = str(shop.app.send("good", {"text": NASTY}, partition_key="k" + NASTY, tags=["t"]).id)
    bad = str(shop.app.send("bad", {"text": NASTY}).id)
    shop.run_worker()
    # What a worker left behind that was killed while the job completed elsewhere.
    shop.sql("INSERT INTO holdfast.progress VALUES (%s, 'inbox', 1, 0.5, %s, now())", [good, NASTY])
    shop.sql("INSERT INTO holdfast.once VALUES (%s, 'inbox', 'step', '1', now())", [good])
    text = cli.text("jobs", "show", good)
    for part in (
        f"job         {good}",
        "task        good (version 1)",
        "state       completed",
        "place       the archive",
        "attempts    1 of 5",
        "generation  1",
        "tags        t",
        "progress    50% \\x1b[31mred",
        "payload\n  {\n",
        "steps\n  ",
        "result\n  ",
    ):
        assert part in text, part
    text = cli.text("jobs", "show", bad)
    assert "state       dead_letter" in text
    assert "place       the dead letters" in text
    assert re.search(r"^attempt 1 failed \(generation 1, worker \S+\) at ", text, re.MULTILINE)
    assert "  Traceback (most recent call last):\n" in text
    assert "\n  ValueError: cannot\n  \\x1b[31mred\\x07\\x9b2J" in text
    report = cli.json("jobs", "show", bad)
    parts = ["job", "place", "cancel_reason", "errors", "progress", "steps"]
    assert list(report)[:6] == parts
    assert report["job"]["payload"] == {"text": NASTY}
    assert report["errors"][0]["kind"] == "ValueError"
    stranger = uuid4()
    assert cli.refused("jobs", "show", str(stranger)) == (
        f"there is no job {stranger}, or it is finished and no longer kept"
    )


def test_archive(shop: Kit, cli: Cli) -> None:
    assert cli.text("archive", "search") == "No finished jobs.\n"
    done = send(shop, 2)
    shop.run_worker()
    (waiting,) = send(shop, tags=["vip"])
    cli.text("jobs", "cancel", waiting, "--reason", "not needed")
    assert [line.split()[0] for line in cli.text("archive", "search").splitlines()[1:]] == [
        waiting,
        *reversed(done),
    ]
    page = cli.json("archive", "search", "-s", "cancelled", "--tag", "vip", "-e", "NEEDED")
    assert [job["id"] for job in page["jobs"]] == [waiting]
    assert cli.refused("archive", "search", "-s", "pending") == (
        "there is no state 'pending' (known: completed, cancelled)"
    )
    text = cli.text("archive", "show", waiting)
    assert "reason      not needed" in text
    (live,) = send(shop)
    assert cli.refused("archive", "show", live) == (
        f"job {live} is not in the archive: it is pending, in queue inbox. See: holdfast jobs show {live}"
    )


def test_audit(shop: Kit, cli: Cli) -> None:
    assert cli.text("audit") == "No acts.\n"
    first, second = send(shop, 2)
    cli.text("jobs", "cancel", first, "--reason", "wrong")
    cli.text("jobs", "discard", second)
    heads, last, before = cli.text("audit").splitlines()
    columns = ["entry", "at", "who", "role", "via", "what", "how many", "which", "change", "why"]
    assert re.split(r"\s{2,}", heads.strip()) == columns
    assert re.search(rf'ann@desk +\S+ +cli +jobs discard +1 +{{"ids": \["{second}"\]}} +- +-$', last)
    stood = r'states: {"pending": 1} -> -'
    assert re.search(rf'ann@desk +\S+ +cli +jobs cancel +1 +.*"reason": "wrong"}} +{stood} +wrong$', before)
    found = cli.json("audit", "--limit", "1")
    assert (found["audit"][0]["action"], found["audit"][0]["count"]) == ("jobs discard", 1)
    assert found["next"] == found["audit"][0]["id"]
    (older,) = cli.json("audit", "--before", str(found["next"]))["audit"]
    assert (older["action"], older["actor"], older["selection"]["reason"]) == (
        "jobs cancel",
        "ann@desk",
        "wrong",
    )
    assert cli.text("audit", "-n", "1").splitlines()[-1] == f"There may be more: --before {found['next']}"


def test_jobs_that_back_off_are_listed_and_retried(shop: Kit, cli: Cli) -> None:
    first, second = send(shop, 2)
    shop.sql(
        "UPDATE holdfast.work SET attempts = 1, available_at = now() + interval '1 hour' WHERE id = %s",
        [first],
    )
    shop.sql("UPDATE holdfast.work SET available_at = now() + interval '1 hour' WHERE id = %s", [second])
    assert [job["id"] for job in cli.json("jobs", "list", "--backing-off")["jobs"]] == [first]
    assert cli.text("jobs", "retry", "--backing-off", "--yes") == "Retry: 1 due now.\n"
    assert cli.json("jobs", "list", "--backing-off")["jobs"] == []


def test_jobs_by_worker_by_attempts_and_by_a_field(shop: Kit, cli: Cli) -> None:
    (first, second), (dead,) = send(shop, 2), send(shop, task="bad")
    shop.run_worker()
    worker = shop.job(UUID(dead))["claimed_by"]

    def listed(*options: str) -> list[str]:
        return [job["id"] for job in cli.json("jobs", "list", *options)["jobs"]]

    assert listed("--worker", worker) == [dead, second, first]
    assert listed("--worker", worker, "--state", "dead") == [dead]
    assert listed("--worker", "nobody") == []
    assert listed("--min-attempts", "1", "--task", "bad") == [dead]
    assert listed("--min-attempts", "2") == []
    assert listed("--task", "good", "--field", "text=1") == [second]
    found = cli.json("archive", "search", "--field", "text=0", "--queue", "inbox")["jobs"]
    assert [job["id"] for job in found] == [first]
    assert (
        cli.text("jobs", "retry", "--state", "dead", "--field", "text=0", "--yes") == "Retry: 1 redriven.\n"
    )
    sentence = "field needs a queue, a task or a state beside it. Name one of them"
    assert cli.refused("jobs", "list", "--field", "text=1") == sentence


def test_the_audit_says_why_and_what_was_changed_and_is_searched(shop: Kit, cli: Cli) -> None:
    (first,) = send(shop)
    cli.text("queue", "pause", "inbox", "--reason", "the provider is down")
    cli.text("jobs", "edit", first, "--priority", "5", "--reason", "asked by support")
    cli.text("queue", "resume", "inbox")
    _, resumed, edited, paused = cli.text("audit").splitlines()
    assert re.search(r'queue resume .*"inbox"} +paused: true -> false +-$', resumed)
    assert re.search(r"jobs edit .* priority: 0 -> 5 +asked by support$", edited)
    assert re.search(r"queue pause .* paused: false -> true +the provider is down$", paused)
    (entry,) = cli.json("audit", "--target", first, "--verb", "jobs", "--actor", "ann@desk")["audit"]
    shown = {name: entry[name] for name in ("surface", "address", "reason", "before", "after", "operation")}
    assert shown == {
        "surface": "cli",
        "address": None,
        "reason": "asked by support",
        "before": {"priority": 0},
        "after": {"priority": 5},
        "operation": None,
    }
    assert cli.text("audit", "--actor", "bob") == "No acts.\n"


# Acts -------------------------------------------------------------------------------------------------------------


def test_named_jobs_need_no_yes(shop: Kit, cli: Cli) -> None:
    (later,) = send(shop, run_after=3600)
    (dead,) = send(shop, task="bad")
    shop.run_worker()
    text = cli.text("jobs", "retry", later, dead, "--dry-run")
    assert text.splitlines()[-1] == (
        "Dry run: jobs retry would act on 2 jobs (1 dead_letter, 1 scheduled). Nothing was changed."
    )
    assert (state(shop, later), state(shop, dead)) == ("scheduled", "dead_letter")
    assert cli.text("jobs", "retry", later, dead) == "Retry: 1 due now, 1 redriven.\n"
    assert cli.text("jobs", "retry", later) == "Retry: 1 due already.\n"
    done = cli.json("jobs", "cancel", later, dead)
    assert done == {
        "action": "jobs cancel",
        "count": 2,
        "results": {"cancelled": 2},
        "left": {},
        "audit": done["audit"],
    }
    assert cli.text("jobs", "retry", later) == "Retry: 1 back from the cancelled.\n"
    assert cli.refused("jobs", "cancel", later, dead) == (
        f"nothing was cancelled: job {dead} is finished: it was cancelled"
    )
    assert cli.text("jobs", "discard", later, dead) == "Discard: 2 discarded.\n"
    assert cli.refused("jobs", "discard", later).startswith("nothing was discarded: there is no job")
    for words in (["retry"], ["cancel", later, "-t", "good"], ["discard", "--yes"]):
        assert cli.refused("jobs", *words) == (
            "say which jobs: their ids, or filters such as --state, --queue or --task, and not both"
        )


def test_a_running_job(shop: Kit, cli: Cli) -> None:
    (job_id,) = send(shop)
    shop.sql("UPDATE holdfast.work SET status = 'processing', claim_token = gen_random_uuid()")
    listed = cli.text("jobs", "list", "-s", "processing").splitlines()
    assert listed[1].endswith("  no claim")
    assert "holdfast doctor --fix stranded" in cli.refused("jobs", "cancel", job_id)
    shop.sql(
        "INSERT INTO holdfast.claims SELECT claim_token, 'inbox', 'host', now(), now() + interval '1 hour', NULL, NULL,"
        " ARRAY[id] FROM holdfast.work"
    )
    assert cli.text("jobs", "list", "-s", "processing").splitlines()[1].endswith("  owned by host")
    assert cli.refused("jobs", "retry", job_id) == f"nothing was retried: job {job_id} is running"
    assert cli.refused("jobs", "discard", job_id) == (
        f"nothing was discarded: job {job_id} is running: cancel it first"
    )
    assert "is running: its handler has its arguments already" in cli.refused(
        "jobs", "edit", job_id, "text=x"
    )
    asked = cli.text("jobs", "cancel", "-t", "good", "--reason", "broken \udcff", "--yes")
    assert asked == "Cancel: 1 running, asked to stop.\n"
    assert cli.text("jobs", "cancel", job_id) == "Cancel: 1 running, asked to stop before.\n"


def test_an_act_over_many_wants_a_yes(shop: Kit, cli: Cli) -> None:
    ids = send(shop, 12)
    (other,) = send(shop, task="bad")
    dry = cli.text("jobs", "cancel", "--task", "good", "--dry-run")
    assert len(dry.splitlines()) == 12
    assert dry.splitlines()[-1] == (
        "Dry run: jobs cancel would act on 12 jobs (12 pending), of which 10 are shown. Nothing was changed."
    )
    found = cli.json("jobs", "cancel", "--task", "good", "--dry-run")
    assert (found["count"], found["by_state"], found["dry_run"]) == (
        {"count": 12, "capped": False},
        {"pending": 12},
        True,
    )
    assert cli.refused("jobs", "cancel", "--task", "good") == (
        "this would cancel 12 jobs (12 pending). Say so: --yes (or look first: --dry-run)"
    )
    assert {state(shop, i) for i in ids} == {"pending"}
    assert cli.json("audit")["audit"] == []
    assert (
        cli.text("jobs", "cancel", "--task", "good", "--reason", "stop", "--yes") == "Cancel: 12 cancelled.\n"
    )
    assert state(shop, other) == "pending"
    (entry,) = cli.json("audit")["audit"]
    assert (entry["count"], entry["selection"]["task"], entry["selection"]["reason"]) == (12, "good", "stop")
    for words in (["--yes"], [], ["--yes", "--dry-run"]):  # nothing to do is no mistake
        assert cli("jobs", "cancel", "--task", "good", *words).code == 0
    assert cli.text("jobs", "cancel", "--task", "good") == "Nothing to cancel.\n"
    assert cli.refused("jobs", "retry", "-s", "held", "--yes") == (
        "jobs retry cannot change jobs that are held (it can: scheduled, quarantined, blocked, dead_letter, cancelled)"
    )


def test_at_a_terminal_it_asks(shop: Kit, cli: Cli) -> None:
    (job_id,) = send(shop)
    assert cli.refused("jobs", "discard", "--task", "good").startswith("say which states: --state pending, ")
    no = cli.at_terminal("jobs", "discard", "--task", "good", "-s", "pending", typed="n\n")
    assert no.code == 2
    assert "Discard 1 job (1 pending)? [y/N]: " in no.out
    assert no.out.endswith("holdfast: nothing was changed\n")
    assert state(shop, job_id) == "pending"
    yes = cli.at_terminal("jobs", "discard", "--task", "good", "-s", "pending", typed="y\n")
    assert yes.code == 0
    assert yes.out.endswith("Discard: 1 discarded.\n")
    assert "1 discarded." in yes.out
    assert cli.text("jobs", "list") == "No jobs.\n"


def test_the_question_says_when_it_has_not_counted_all(
    shop: Kit, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest that were counted may all be in one state; the others are in the question all the same."""
    monkeypatch.setattr(preview, "EACH", 2)
    monkeypatch.setattr(preview, "CAP", 3)
    monkeypatch.setattr(search, "CAP", 3)
    send(shop, 3, run_after=3600)
    shop.sql(
        "UPDATE holdfast.work SET status = 'held', hold_reason = 'x'"
        " WHERE id = (SELECT id FROM holdfast.work ORDER BY id LIMIT 1)"
    )
    send(shop, 5)
    said = "3+ jobs (2+ pending, 2 scheduled, 1 held)"
    assert cli.refused("jobs", "cancel", "--queue", "inbox") == (
        f"this would cancel {said}. Say so: --yes (or look first: --dry-run)"
    )
    dry = cli.text("jobs", "cancel", "--queue", "inbox", "--dry-run").splitlines()[-1]
    assert dry.startswith(f"Dry run: jobs cancel would act on {said}")
    found = cli.json("jobs", "cancel", "--queue", "inbox", "--dry-run")
    assert (found["by_state"], found["at_least"]) == ({"pending": 2, "scheduled": 2, "held": 1}, ["pending"])


def test_a_queue_that_is_not_there(shop: Kit, cli: Cli) -> None:
    said = "queue 'inbx' does not exist (known: inbox). Did you mean 'inbox'? Create it: holdfast queue create inbx"
    for words in (
        ("list",),
        ("retry", "--yes"),
        ("cancel", "--dry-run"),
        ("discard", "-s", "pending", "--yes"),
    ):
        assert cli.refused("jobs", *words, "-q", "inbx") == said
    note = "note: queue 'inbx' does not exist (known: inbox)\n"
    for look in (("archive", "search"), ("dead", "list"), ("dead", "redrive", "--yes")):
        ran = cli(*look, "-q", "inbx")
        assert (ran.code, ran.err) == (0, note), look
        assert cli(*look, "-q", "inbox").err == "", look


def test_interrupted_it_says_what_was_done(shop: Kit, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    ids = send(shop, 5)
    batch = Batches.batch

    def interrupted(run: Batches[Any], found: Any) -> Procedure[None]:
        if run.count:
            raise KeyboardInterrupt
        return batch(run, found)

    monkeypatch.setattr(Batches, "batch", interrupted)
    ran = cli("jobs", "cancel", "--task", "good", "--yes")
    assert (ran.code, ran.err) == (130, "Interrupted: 2 cancelled, and counted in the audit.\n")
    assert [state(shop, i) for i in ids].count("cancelled") == 2
    assert cli.json("audit")["audit"][0]["count"] == 2


# Edit -------------------------------------------------------------------------------------------------------------


EDITED = """
from holdfast import Holdfast

app = Holdfast()

@app.task
def good(text: str, n: int = 0) -> str:
    return text
"""


def test_edit(shop: Kit, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edited_app.py").write_text(EDITED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path])
    job_id = str(shop.app.send("good", {"text": "a", "n": 1}, tags=["x"]).id)
    ran = cli("jobs", "edit", job_id, "text=b", "--unset", "n", "--priority", "5", "--tag", "y", "--tag", "z")
    assert ran.out.splitlines() == [
        "priority: 0 -> 5",
        'tags: ["x"] -> ["y", "z"]',
        "n: 1 -> -",
        'text: "a" -> "b"',
    ]
    assert ran.err == "note: the arguments were not checked: no app was named that knows the task\n"
    app = ("-a", "edited_app:app")
    assert cli.refused("jobs", "edit", job_id, "n=seven", *app).startswith(
        f"job {job_id} was not changed: parameter 'n' of good must be int"
    )
    assert cli.text("jobs", "edit", job_id, "n:=7", *app) == "n: - -> 7\n"
    assert cli.text("jobs", "edit", job_id, "n:=7", *app) == "Nothing to change: it is like this already.\n"
    assert cli.text("jobs", "edit", job_id, "--run-after", "5m", "--no-tags").count("->") == 2
    assert state(shop, job_id) == "scheduled"
    edited = cli.json("jobs", "edit", job_id, "--max-attempts", "2")
    assert (edited["before"], edited["after"]) == ({"max_attempts": 5}, {"max_attempts": 2})
    assert shop.job(UUID(job_id))["payload"] == {"text": "b", "n": 7}
    assert [entry["action"] for entry in cli.json("audit")["audit"]] == ["jobs edit"] * 4
    wrong = {
        ("text",): "'text' is no argument. Write name=text for a string, or name:=json for a number,",
        ("--run-after", "soon"): "--run-after 'soon' is neither a span of time nor a time.",
        ("--run-after", "2030-01-31T12:00"): "--run-after '2030-01-31T12:00' has no time zone.",
        ("--run-after", "999999d"): "run_after must be at most 10 years ahead",
        ("--tag", "x", "--no-tags"): "give --tag or --no-tags, not both",
        ("--priority", "101"): "priority must be an integer from -100 to 100, not int 101",
        ("--unset", "\udcff"): "argument 1 '\\udcff' is not valid text.",
        ("text=\udcff",): "payload value text contains a lone surrogate",
        (): "say what to change: NAME=TEXT, NAME:=JSON, --unset, --priority or another option",
    }
    for words, said in wrong.items():
        assert cli.refused("jobs", "edit", job_id, *words).startswith(said)


NUMBERS = ["0.10000000000000000000000001", "7" * 5001, "8" * 401 + ".5", "1.50", "-3", "1.5"]


def test_numbers_are_shown_as_they_are_stored(shop: Kit, cli: Cli) -> None:
    (job_id,) = send(shop)
    payload = f'{{"n": [{", ".join(NUMBERS)}], "text": "0"}}'
    shop.sql("UPDATE holdfast.work SET payload = %s, metadata = %s", [payload, payload])
    assert shop.sql("SELECT payload::text AS p FROM holdfast.work")[0]["p"] == payload
    text = cli.text("jobs", "show", job_id)
    shown = re.findall(r"^ +([-0-9.]+),?$", text, re.MULTILINE)
    assert shown == NUMBERS * 2  # payload and metadata
    out = cli.text("jobs", "show", job_id, "--json")
    assert f'"payload": {payload}' in out
    found = json.loads(out, parse_int=str, parse_float=str)  # one JSON document
    assert found["job"]["payload"]["n"] == NUMBERS
    edited = cli("jobs", "edit", job_id, "n:=1")
    assert edited.code == 0
    assert edited.out.startswith("n: [0.10000000000000000000000001, 777")
    assert edited.out.endswith("… -> 1\n")
    assert cli.text("jobs", "edit", job_id, "n:=1") == "Nothing to change: it is like this already.\n"
    assert cli("jobs", "edit", job_id, "n:=1.0").out == "n: 1 -> 1.0\n"
    assert "is not JSON" in cli.refused("jobs", "edit", job_id, f"n:={'7' * 5001}")


def test_what_turns_the_direction_of_text_is_shown_by_its_number(shop: Kit, cli: Cli) -> None:
    turns = "\u202e\u200e\u200f\u061c\u2066"
    job_id = str(shop.app.send("good", {"text": turns}).id)
    assert r'"text": "\u202e\u200e\u200f\u061c\u2066"' in cli.text("jobs", "show", job_id)


# Control characters -----------------------------------------------------------------------------------------------


EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\x7f\x85\u202e\u2066end\nforged      line"


@pytest.fixture
def haunted(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Jobs whose every text would like to drive a terminal; their ids by state."""
    monkeypatch.setenv("HOLDFAST_ACTOR", f"ann{EVIL}")
    payload = json.dumps({f"name{EVIL}": EVIL})
    made = {}
    for name in ("pending", "held", "processing", "quarantined", "completed", "cancelled", "dead_letter"):
        made[name] = str(kit.app.send("t", {}, partition_key=f"k{EVIL}", tags=[f"t{EVIL}"[:90]]).id)
    values = {"p": payload, "e": f"Error: {EVIL}", "t": f"task{EVIL}", "w": f"host{EVIL}", **made}
    kit.sql(
        "UPDATE holdfast.work SET payload = %(p)s, last_error = %(e)s, task = %(t)s, metadata = %(p)s", values
    )
    columns = (
        "id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, attempts, max_attempts, version,"
        " crashes, priority, queue, task, partition_key, payload, last_error, tags, metadata"
    )
    for name in ("completed", "cancelled"):
        kit.sql(
            f"WITH g AS (DELETE FROM holdfast.work WHERE id = %({name})s RETURNING *)"
            f" INSERT INTO holdfast.archive ({columns}, slot, completed_at, status, claimed_by, result)"
            f" SELECT {columns}, holdfast.archive_slot(now()), now(), '{name}', %(w)s, to_jsonb(%(e)s::text) FROM g",
            values,
        )
    kit.sql(
        "WITH g AS (DELETE FROM holdfast.work WHERE id = %(dead_letter)s RETURNING *)"
        f" INSERT INTO holdfast.dead_letters ({columns}, died_at, claimed_by) SELECT {columns}, now(), %(w)s FROM g",
        values,
    )
    kit.sql("UPDATE holdfast.dead_letters SET queue = %(w)s", values)
    kit.sql("UPDATE holdfast.work SET status = 'held', hold_reason = %(e)s WHERE id = %(held)s", values)
    kit.sql("INSERT INTO holdfast.quarantine VALUES (%(quarantined)s, 'inbox', %(e)s)", values)
    kit.sql("UPDATE holdfast.work SET status = 'processing' WHERE id = %(processing)s", values)
    kit.sql(
        "INSERT INTO holdfast.claims SELECT claim_token, 'inbox', %(w)s, now(), now() + interval '1 hour', NULL, NULL,"
        " ARRAY[id] FROM holdfast.work WHERE id = %(processing)s",
        values,
    )
    for job_id in made.values():
        given = {**values, "id": job_id}
        kit.sql(
            "INSERT INTO holdfast.errors VALUES (%(id)s, 'inbox', 1, 1, now(), %(w)s, %(e)s, %(e)s, %(e)s)",
            given,
        )
        kit.sql("INSERT INTO holdfast.progress VALUES (%(id)s, 'inbox', 1, 0.5, %(e)s, now())", given)
        kit.sql("INSERT INTO holdfast.once VALUES (%(id)s, 'inbox', %(e)s, '1', now())", given)
    return made


def commands(jobs: dict[str, str]) -> list[tuple[str, ...]]:
    """Every command, those that change something last. None of them may fail in a way we did not mean."""
    shows = [("jobs", "show", i) for i in jobs.values()]
    return [
        ("jobs", "list"),
        *shows,
        ("archive", "search"),
        ("archive", "show", jobs["completed"]),
        ("archive", "show", jobs["dead_letter"]),
        ("dead", "list"),
        ("dead", "list", "--each"),
        ("dead", "show", jobs["dead_letter"]),
        ("dead", "redrive", jobs["dead_letter"]),
        ("dead", "redrive", "--all", "--dry-run"),
        ("dead", "redrive", "--all", "--yes"),
        ("jobs", "retry", jobs["held"]),
        ("jobs", "retry", jobs["completed"]),
        ("jobs", "retry", "-k", f"k{EVIL}", "--dry-run"),
        ("jobs", "cancel", jobs["pending"], "--reason", EVIL, "--dry-run"),
        ("jobs", "edit", jobs["pending"], "--unset", f"no{EVIL}"),
        ("jobs", "edit", jobs["pending"], f"new{EVIL}={EVIL}", f"name{EVIL}=x", "--tag", "t\x1b[2J"),
        ("jobs", "cancel", "-k", f"k{EVIL}", "--reason", EVIL, "--yes"),
        ("jobs", "discard", "-t", f"task{EVIL}", "-s", "cancelled", "--yes"),
        ("jobs", "list", "-q", EVIL),
        ("archive", "search", "-q", EVIL),
        ("dead", "list", "-q", EVIL),
        ("dead", "discard", "-q", EVIL, "-k", EVIL, "--tag", EVIL, "--yes"),
        ("dead", "discard", "-e", EVIL, "--yes"),
        ("audit",),
    ]


@pytest.mark.parametrize("how", ["plain", "json", "terminal"])
def test_no_text_of_a_job_drives_the_terminal(
    haunted: dict[str, str], cli: Cli, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ACTOR", f"ann{EVIL}")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "400")
    for words in commands(haunted):
        ran = cli.at_terminal(*words) if how == "terminal" else cli(*words, *["--json"] * (how == "json"))
        assert ran.code in (0, 2), (words, ran)
        assert unsafe(ran.out + ran.err) == [], (words, ran)
        assert not re.search("^(\\S+ )?forged", ran.out + ran.err, re.MULTILINE), (words, ran)
        if how == "json" and ran.code == 0:
            json.loads(ran.out)


def test_a_table_at_a_terminal_has_ids_that_can_be_copied_and_takes_no_markup(
    kit: Kit, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    job = kit.app.send("charge", {})
    kit.sql("UPDATE holdfast.work SET last_error = '[red]markup[/red] ' || repeat('x', 200)")
    head, line = cli.at_terminal("jobs", "list").out.splitlines()[:2]
    assert head.split() == ["id", "queue", "task", "state", "created", "note"]
    assert line.startswith(f"{str(job.id)[:18]}  inbox  charge  pending")
    assert cli.json("jobs", "show", line.split()[0])["job"]["id"] == str(job.id)
    assert "[red]markup[/" in line


def test_copy(shop: Kit, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "copied_app.py").write_text(EDITED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path])
    old = str(shop.app.send("good", {"text": "a"}).id)
    assert cli.refused("jobs", "copy", old).startswith(f"job {old} is pending: it runs once")
    shop.run_worker()
    ran = cli("jobs", "copy", old, "text=b", "--priority", "5")
    made = ran.out.strip()
    assert ran.err == "note: the arguments were not checked: no app was named that knows the task\n"
    copy = shop.job(UUID(made))
    assert (copy["payload"], copy["priority"]) == ({"text": "b"}, 5)
    assert cli.refused("jobs", "copy", old, "n=seven", "-a", "copied_app:app").startswith(
        f"job {old} was not copied: parameter 'n' of good must be int"
    )
    copied = cli.json("jobs", "copy", old, "-a", "copied_app:app")
    assert (copied["copied_from"], copied["changed"], copied["checked"]) == (old, {}, True)
    assert state(shop, old) == "completed"
    assert cli.refused("jobs", "retry", old).endswith(
        f"completed. To run a copy of it: holdfast jobs copy {old}"
    )


def test_undo(shop: Kit, cli: Cli) -> None:
    (job_id,) = send(shop)
    cli("jobs", "cancel", job_id)
    (entry,) = cli.json("audit")["audit"]
    assert cli.text("undo", str(entry["id"])) == "Revived: 1\n"
    assert state(shop, job_id) == "pending"
    undone = cli.json("audit", "--verb", "undo")["audit"]
    assert [one["selection"]["entry"] for one in undone] == [entry["id"]]
    assert "is not cancelled: it is pending" in cli.refused("undo", str(entry["id"]))
    assert "which has no undo" in cli.refused("undo", str(undone[0]["id"]))
    assert cli.refused("undo", "999").endswith("The list: holdfast audit")
