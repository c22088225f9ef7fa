"""`holdfast queue`, `task` and `workers`, as a person and as a program use them."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner, Result

from holdfast import Backoff, Breaker, Holdfast
from holdfast.cli import app as cli
from holdfast.cli.refusals import words as words_of
from holdfast.errors import ConfigurationError, UnknownQueue
from holdfast.operate.operator import Operator
from holdfast.operate.refusal import Refused
from holdfast.testing import Kit

Call = Callable[..., Result]


@pytest.fixture(autouse=True)
def _ann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann")
    monkeypatch.delenv("HOLDFAST_APP", raising=False)


@pytest.fixture
def call(dsn: str) -> Call:
    """`call("queue", "list")` runs a command on this test's database."""

    def run(*words: str) -> Result:
        result = CliRunner().invoke(cli, [*words, "-d", dsn])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


@pytest.fixture
def refused(dsn: str) -> Callable[..., str]:
    """The message of the error that a command ends with."""

    def run(kind: type[Exception], *words: str) -> str:
        result = CliRunner().invoke(cli, [*words, "-d", dsn])
        assert isinstance(result.exception, kind), result.output
        return words_of(result.exception)

    return run


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn: str) -> Iterator[str]:
    """A module with an app: two queues, a task with another name."""
    name = f"shop_{uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(
        f"from holdfast import Holdfast\n\napp = Holdfast({dsn!r})\n\n\n"
        "@app.task(queue='mail', aliases=['post'])\ndef send() -> None: ...\n\n\n"
        "@app.task(queue='bulk')\ndef load() -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield f"{name}:app"
    sys.modules.pop(name, None)


def read(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def acts(kit: Kit) -> list[tuple[str, str, Any, int]]:
    rows = kit.sql("SELECT actor, action, selection, count FROM holdfast.audit ORDER BY id")
    return [(r["actor"], r["action"], r["selection"], r["count"]) for r in rows]


# Queues ------------------------------------------------------------------------------------------------------------


def test_pause_and_resume_a_queue(kit: Kit, call: Call, refused: Callable[..., str]) -> None:
    kit.sql("SELECT holdfast.create_queue('mail', 30)")
    assert call("queue", "pause", "mail").stdout == "Queue mail is paused.\n"
    again = call("queue", "pause", "mail")
    assert re.fullmatch(r"Queue mail was paused already, for \d+ s, by ann\.\n", again.stdout)
    assert again.exit_code == 0
    heads, inbox, mail = (re.split(r"  +", line) for line in call("queue", "list").stdout.splitlines())
    numbers = ["pending", "oldest", "scheduled", "processing", "held", "quarantined"]
    assert heads == ["queue", *numbers, "lease", "paused"]
    assert inbox == ["inbox", "0", "-", "0", "0", "0", "0", "-", "-"]
    assert mail[:8] == ["mail", "0", "-", "0", "0", "0", "0", "30 s"]
    assert re.fullmatch(r"\d+ s, by ann", mail[8])
    found = {q["name"]: q for q in read(call("queue", "list", "--json"))["queues"]}
    assert (found["mail"]["lease"], found["mail"]["paused_by"], found["inbox"]["paused_at"]) == (
        30,
        "ann",
        None,
    )
    assert re.search(r"^paused      queue mail for \d+ s, by ann$", call("status").stdout, re.MULTILINE)

    assert call("queue", "resume", "mail").stdout == "Queue mail is resumed.\n"
    assert call("queue", "resume", "mail").stdout == "Queue mail was not paused.\n"
    assert read(call("queue", "resume", "mail", "--json")) == {
        "queue": "mail",
        "changed": False,
        "pause": {"at": None, "by": None, "seconds": None},
        "audit": None,
    }
    for verb in ("pause", "resume"):
        assert refused(UnknownQueue, "queue", verb, "mial") == (
            "queue 'mial' does not exist (known: inbox, mail). Did you mean 'mail'? Create it: holdfast queue create mial"
        )
    assert [(who, what, count) for who, what, _, count in acts(kit)] == [
        ("ann", "queue pause", 1),
        ("ann", "queue resume", 1),
    ]


def test_sync_makes_what_the_app_declares(kit: Kit, call: Call, shop: str) -> None:
    kit.sql("SELECT holdfast.create_queue('bulk'), holdfast.create_queue('old')")
    unknown = "In the database, but not declared by the app: old\n"
    dry = call("queue", "sync", "--app", shop, "--dry-run")
    assert dry.stdout == f"Queue mail would be created.\n{unknown}"
    assert [q.name for q in Operator(kit.database, "ann").list_queues()] == ["bulk", "inbox", "old"]
    assert call("queue", "sync", "--app", shop).stdout == f"Queue mail created.\n{unknown}"
    assert read(call("queue", "sync", "--app", shop, "--json")) == {
        "created": [],
        "existing": ["bulk", "inbox", "mail"],
        "unknown": ["old"],
        "changed": {},
    }
    assert (
        call("queue", "sync", "-a", shop).stdout == f"Every queue that the app declares is there.\n{unknown}"
    )
    assert acts(kit) == [("ann", "queue sync", {"queues": ["mail"]}, 1)]


def test_sync_needs_an_app(refused: Callable[..., str]) -> None:
    assert refused(ConfigurationError, "queue", "sync").startswith("no app was named.")


def test_making_a_queue_is_written_down(kit: Kit, call: Call) -> None:
    assert read(call("queue", "create", "mail", "--lease", "30", "--json")) == {
        "name": "mail",
        "created": True,
        "lease": 30,
        "ordering": "none",
        "on_dead_letter": "skip",
    }
    call("queue", "create", "mail")
    assert acts(kit) == [("ann", "queue create", {"queues": ["mail"], "lease": 30}, 1)]


# Tasks -------------------------------------------------------------------------------------------------------------


def test_pause_resume_and_list_tasks(app: Holdfast, kit: Kit, call: Call) -> None:
    @app.task
    def work() -> None: ...

    assert call("task", "list").stdout == "No tasks: no worker runs, and none is paused.\n"
    work.enqueue()
    done = call("task", "pause", "work")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "Task work is paused. Jobs set aside: 1\n", "")
    again = call("task", "pause", "work").stdout
    assert re.fullmatch(r"Task work was paused already, for \d+ s, by ann\. Jobs set aside: 0\n", again)
    heads, line = (re.split(r"  +", text) for text in call("task", "list").stdout.splitlines())
    assert heads == ["task", "workers", "held", "paused", "breaker"]
    assert line[:3] == ["work", "0", "1"]
    assert re.fullmatch(r"\d+ s, by ann", line[3])
    (one,) = read(call("task", "list", "--json"))["tasks"]
    assert (one["task"], one["pause"]["paused_by"], one["held"]) == (
        "work",
        "ann",
        {"count": 1, "capped": False},
    )
    assert re.search(r"^paused      task work for \d+ s, by ann$", call("status").stdout, re.MULTILINE)
    assert [t["task"] for t in read(call("status", "--json"))["paused_tasks"]] == ["work"]
    assert call("task", "resume", "work").stdout == "Task work is resumed. Jobs put back: 1\n"
    assert call("task", "resume", "work").stdout == "Task work was not paused. Jobs put back: 0\n"
    assert [row["status"] for row in kit.jobs()] == ["pending"]
    assert [(who, what) for who, what, _, _ in acts(kit)] == [("ann", "task pause"), ("ann", "task resume")]


def test_an_open_breaker_is_listed_and_resume_closes_it(app: Holdfast, kit: Kit, call: Call) -> None:
    @app.task(breaker=Breaker(failures=2, cooldown=90), retry=Backoff(first=9999))
    def work() -> None:
        raise ConnectionError("the shop\x1b[31m is closed")

    def line() -> str:
        return re.split(r"  +", call("task", "list").stdout.splitlines()[1])[4]

    work.enqueue()
    kit.run_worker(concurrency=1)
    Operator(kit.database, "ann").pause_task("work")
    assert line() == r"closed, 1 failure: ConnectionError: the shop\x1b[31m is closed"
    Operator(kit.database, "ann").resume_task("work")
    work.enqueue()
    kit.run_worker(concurrency=1)
    work.enqueue()
    assert re.fullmatch(r"open for [.\d]+ s, next trial in 1 min: ConnectionError: the shop.*", line())
    (one,) = read(call("task", "list", "--json"))["tasks"]
    assert (one["pause"], one["breaker"]["state"], one["breaker"]["trials"]) == (None, "open", 0)
    kit.clock.advance(91)
    kit.sql("UPDATE holdfast.breakers SET retry_at = opened_at")
    assert "next trial is due" in line()
    done = call("task", "resume", "work").stdout
    assert re.fullmatch(r"Task work is resumed\. Its breaker is closed\. Jobs put back: \d\n", done)
    assert call("task", "resume", "work").stdout == "Task work was not paused. Jobs put back: 0\n"


def test_a_task_that_nobody_knows_is_paused_with_a_question(kit: Kit, call: Call, shop: str) -> None:
    done = call("task", "pause", "sennd", "--app", shop)
    assert done.exit_code == 0
    assert done.stdout == "Task sennd is paused. Jobs set aside: 0\n"
    assert done.stderr == "note: no app or live worker here knows a task 'sennd'. Did you mean 'send'?\n"
    done = call("task", "resume", "lod", "--app", shop)
    assert done.stdout == "Task lod was not paused. Jobs put back: 0\n"
    assert done.stderr == "note: no app or live worker here knows a task 'lod'. Did you mean 'load'?\n"


def test_the_other_name_of_a_task_is_another_name(call: Call, kit: Kit, shop: str) -> None:
    kit.sql("SELECT holdfast.enqueue('post'), holdfast.enqueue('send')")
    done = call("task", "pause", "send", "--app", shop)
    assert done.stdout == "Task send is paused. Jobs set aside: 1\n"
    assert done.stderr == "note: jobs enqueued as post are not paused: that is another name of this task\n"
    assert {row["task"]: row["status"] for row in kit.jobs()} == {"post": "pending", "send": "held"}
    lines = call("task", "list", "--app", shop).stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["load", "post", "send"]


def test_tasks_of_living_workers_are_known(kit: Kit, call: Call) -> None:
    kit.sql(
        """INSERT INTO holdfast.workers (id, host, pid, last_seen_at, started_at, queues, tasks, concurrency,
                                         release, status)
           VALUES ('h:1:a', 'h', 1, now(), now(), '{inbox}', '{here}', 1, '1', 'alive'),
                  ('h:2:b', 'h', 2, now() - interval '1 hour', now(), '{inbox}', '{late}', 1, '1', 'alive'),
                  ('h:3:c', 'h', 3, now(), now(), '{inbox}', '{gone}', 1, '1', 'gone')"""
    )
    assert [(t["task"], t["workers"]) for t in read(call("task", "list", "--json"))["tasks"]] == [("here", 1)]
    assert "Did you mean 'here'?" in call("task", "pause", "heer").stderr


# Workers -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def fleet(kit: Kit) -> Kit:
    """Two workers on one host, one on another, one that drains and one that has left."""
    kit.sql(
        """INSERT INTO holdfast.workers (id, host, pid, last_seen_at, started_at, queues, tasks, concurrency,
                                         release, status)
           SELECT id, split_part(id, ':', 1), 1, now(), now(), '{inbox}', '{}', 1, '1', status FROM (VALUES
               ('web:1:abcd', 'alive'), ('web:2:abff', 'alive'), ('db:3:cccc', 'alive'), ('db:4:dddd', 'draining'),
               ('db:5:eeee', 'gone')) AS w(id, status)"""
    )
    return kit


def statuses(kit: Kit) -> dict[str, str]:
    return {r["id"]: r["status"] for r in kit.sql("SELECT id, status FROM holdfast.workers")}


def test_bare_workers_still_lists(fleet: Kit, call: Call, refused: Callable[..., str]) -> None:
    for words in (["workers", "--json"], ["workers", "list", "--json"]):
        found = [w["id"] for w in read(call(*words))["workers"]]
        assert found == ["db:3:cccc", "db:4:dddd", "web:1:abcd", "web:2:abff"]
    assert len(read(call("workers", "--all", "--json"))["workers"]) == 5
    assert refused(ConfigurationError, "workers", "--json", "list") == (
        "options go behind the command: holdfast workers list ..."
    )


def test_drain_by_id_by_its_beginning_by_host_and_all(
    fleet: Kit, call: Call, refused: Callable[..., str]
) -> None:
    assert call("workers", "drain", "web:1:abcd").stdout == "Worker web:1:abcd is asked to drain.\n"
    assert call("workers", "drain", "web:2", "cc").stdout == (
        "Worker db:3:cccc is asked to drain.\nWorker web:2:abff is asked to drain.\n"
    )
    assert call("workers", "drain", "--host", "db", "--yes").stdout == (
        "Worker db:3:cccc drains already.\nWorker db:4:dddd drains already.\n"
    )
    assert call("workers", "drain", "db:5").stdout == "Worker db:5:eeee is gone already.\n"
    fleet.sql("UPDATE holdfast.workers SET status = 'alive' WHERE id LIKE 'web%'")
    assert read(call("workers", "drain", "--all", "--dry-run", "--json"))["would_ask"] == [
        "web:1:abcd",
        "web:2:abff",
    ]
    assert call("workers", "drain", "--all", "--dry-run").stdout.endswith(
        "Dry run: 2 would be asked to drain. Nothing was changed.\n"
    )
    assert refused(ConfigurationError, "workers", "drain", "--all") == (
        "this would drain 2 workers. Say so: --yes (or look first: --dry-run)"
    )
    assert read(call("workers", "drain", "--all", "--yes", "--json")) == {
        "asked": ["web:1:abcd", "web:2:abff"],
        "draining": ["db:3:cccc", "db:4:dddd"],
        "gone": [],
        "left": [],
    }
    assert set(statuses(fleet).values()) == {"draining", "gone"}
    assert acts(fleet) == [
        ("ann", "workers drain", {"ids": ["web:1:abcd"]}, 1),
        ("ann", "workers drain", {"ids": ["web:2", "cc"]}, 2),
        ("ann", "workers drain", {"all": True}, 2),
    ]


def test_drain_says_what_it_cannot_do(fleet: Kit, refused: Callable[..., str], call: Call) -> None:
    which = "say which workers: their ids, --host NAME or --all"
    before = statuses(fleet)
    for words, text in {
        (): which,
        ("web:1", "--all"): which,
        ("nobody",): "there is no worker 'nobody'. The list: holdfast workers list --all",
        ("web",): "2 workers begin with 'web' (web:1:abcd, web:2:abff). Write more of the id",
        ("ab",): "2 workers begin with 'ab' (web:1:abcd, web:2:abff). Write more of the id",
        ("web:1", ""): "an id must not be empty. The list: holdfast workers list",
        ("--host", "moon"): "no worker runs on host 'moon'. The list: holdfast workers list",
    }.items():
        assert refused(ConfigurationError, "workers", "drain", *words) == text
    assert statuses(fleet) == before
    assert acts(fleet) == []
    fleet.sql("UPDATE holdfast.workers SET status = 'gone'")
    assert call("workers", "drain", "--all").stdout == "No workers.\n"


# Limits ------------------------------------------------------------------------------------------------------------

ALL_LIMITS = (
    *("--fair", "--weight", "vip=3", "--concurrency", "20", "--key-concurrency", "1", "--rate", "100/m"),
    *("--burst", "10", "--key-rate", "5/s", "--key-burst", "5"),
)


def test_limits_are_made_shown_changed_and_taken_away(kit: Kit, call: Call) -> None:
    assert call("queue", "create", "mail", *ALL_LIMITS).stdout == "Queue mail created.\n"
    assert call("queue", "show", "mail").stdout.splitlines() == [
        "fair                 fair",
        "weights              weights vip=3",
        "concurrency          0 of 20 run",
        "concurrency per key  1 of a key (0 keys at it)",
        "rate                 100/m burst 10 (10 left)",
        "rate per key         5/s burst 5 of a key",
    ]
    heads, inbox, mail = (re.split(r"  +", line) for line in call("queue", "list").stdout.splitlines())
    assert heads[-2:] == ["rules", "paused"]
    assert inbox[-2:] == ["-", "-"]
    assert mail[-2].startswith(
        "fair, weights vip=3, 0 of 20 run, 1 of a key (0 keys at it), 100/m burst 10 (10 left)"
    )

    done = call(
        "queue",
        "set",
        "mail",
        "--concurrency",
        "30",
        "--rate",
        "none",
        "--key-burst",
        "9",
        "--weight",
        "vip=1",
    )
    assert done.stdout == (
        "Queue mail is changed: weights none (was vip=3), concurrency 30 (was 20), rate none (was 100/m burst 10), "
        "rate per key 5/s burst 9 (was 5/s burst 5).\n"
    )
    again = call("queue", "set", "mail", "--concurrency", "30", "--rate", "none")
    assert again.stdout == "Queue mail is like this already.\n"
    assert acts(kit)[-1][1:] == (
        "queue set",
        {
            "queue": "mail",
            "changed": {
                "weights": [{"vip": 3.0}, None],
                "concurrency": [20, 30],
                "rate": ["100/m burst 10", None],
                "key_rate": ["5/s burst 5", "5/s burst 9"],
            },
        },
        1,
    )
    shown = read(call("queue", "show", "mail", "--json"))
    assert shown["rules"] == {
        "fair": True,
        "concurrency": 30,
        "key_concurrency": 1,
        "key_rate": "5/s burst 9",
    }
    assert shown["running"] == 0
    assert call("queue", "set", "inbox", "--aging", "30").stdout == (
        "Queue inbox is changed: aging 30 s (was none).\n"
    )
    assert read(call("queue", "list", "--json"))["rules"]["inbox"]["rules"] == {"aging": 30.0}


def test_affinity_is_made_shown_changed_and_listed_by_the_ring(
    kit: Kit, call: Call, refused: Callable[..., str]
) -> None:
    assert call("ring").stdout == (
        "No queue has order or affinity by key. "
        "Make one: holdfast queue create NAME --ordering key, or --affinity key\n"
    )
    call("queue", "create", "mail", "--affinity", "key", "--concurrency", "20")
    assert call("queue", "show", "mail").stdout.splitlines() == [
        "concurrency          0 of 20 run",
        "affinity             affinity by key",
    ]
    assert "mail: 0 workers, 1024 buckets" in call("ring").stdout
    said = call("queue", "set", "mail", "--affinity", "none").stdout
    assert said == "Queue mail is changed: affinity none (was key).\n"
    assert "has no ring" in refused(Refused, "ring", "mail")
    said = call("queue", "set", "mail", "--affinity", "key").stdout
    assert said == "Queue mail is changed: affinity key (was none).\n"
    message = "an ordered queue keeps each key with one worker already. Leave affinity out"
    assert refused(ConfigurationError, "queue", "set", "mail", "--ordering", "key") == message
    assert "does not go with aging" in refused(ConfigurationError, "queue", "set", "mail", "--aging", "9")
    with pytest.raises(psycopg.errors.CheckViolation):
        kit.sql("UPDATE holdfast.queues SET aging = 9 WHERE name = 'mail'")
    changes = [selection["changed"] for _, action, selection, _ in acts(kit) if action == "queue set"]
    assert changes == [{"affinity": ["key", "none"]}, {"affinity": ["none", "key"]}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("set", "inbox", "--concurrency", "0"),
            "--concurrency takes a whole number from 1 to 1000000, or none, not '0'",
        ),
        (("set", "inbox", "--rate", "fast"), "a rate is a number and s, m, h or d, as 100/m, not 'fast'"),
        (
            ("set", "inbox", "--burst", "5"),
            "--burst is the size of a rate's bucket: give --rate too, as 100/m",
        ),
        (
            ("set", "inbox", "--rate", "5/s", "--burst", "0"),
            "--burst takes a number from 1 to 1000000, not 0",
        ),
        (
            ("set", "inbox", "--aging", "soon"),
            "--aging takes a span of time such as 90s, more than 0, or none, not 'soon'",
        ),
        (
            ("set", "inbox", "--weight", "vip"),
            "--weight takes a key and a number from 0.01 to 100, as vip=3, not 'vip'",
        ),
        (
            ("create", "new", "--weight", "vip=3"),
            "weights need fair=True: they say how often the turn of a key comes. Add fair=True",
        ),
        (
            ("create", "new", "--fair", "--aging", "3"),
            "aging is for queues that are claimed by priority, not key by key. Leave aging out",
        ),
        (
            ("set", "inbox", "--key-concurrency", "1"),
            (
                "queue 'inbox' was made without keys, so key_concurrency cannot be set: "
                "not every job in it has a partition key, and nothing finds the next job of one. "
                "Create a queue for it and enqueue there: "
                "holdfast queue create inbox_by_key --key-concurrency ..."
            ),
        ),
    ],
)
def test_limits_that_cannot_be_are_refused(
    kit: Kit, refused: Callable[..., str], words: tuple[str, ...], message: str
) -> None:
    assert refused(ConfigurationError, "queue", *words) == message
    assert acts(kit) == []


def test_sync_brings_limits_to_what_the_app_declares(
    kit: Kit, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn: str
) -> None:
    name = f"limited_{uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(
        f"from holdfast import Holdfast, Rate\n\napp = Holdfast({dsn!r})\n"
        "app.queue('mail', concurrency=20, rate=Rate(100, per=60, burst=10))\n\n\n"
        "@app.task(queue='mail')\ndef send() -> None: ...\n\n\n"
        "@app.task(queue='bulk')\ndef load() -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    call("queue", "create", "mail", "--concurrency", "5", "--aging", "9")
    call("queue", "create", "bulk", "--concurrency", "7")  # of which the app says nothing
    said = "concurrency 20 (was 5), rate 100/m burst 10 (was none), aging none (was 9 s).\n"
    dry = call("queue", "sync", "--app", f"{name}:app", "--dry-run")
    assert dry.stdout == f"Queue mail would be changed: {said}"
    assert read(call("queue", "show", "mail", "--json"))["rules"] == {"concurrency": 5, "aging": 9.0}
    assert call("queue", "sync", "--app", f"{name}:app").stdout == f"Queue mail is changed: {said}"
    assert (
        call("queue", "sync", "--app", f"{name}:app").stdout
        == "Every queue that the app declares is there.\n"
    )
    assert read(call("queue", "show", "mail", "--json"))["rules"] == {
        "concurrency": 20,
        "rate": "100/m burst 10",
    }
    assert read(call("queue", "show", "bulk", "--json"))["rules"] == {"concurrency": 7}
    assert [what for _, what, _, _ in acts(kit)] == ["queue create", "queue create", "queue sync"]
    sys.modules.pop(name, None)
