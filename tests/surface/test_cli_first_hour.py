"""What a new user meets first: ids by their beginning, tables that fit, and being told that nobody works."""

import json
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from tests.conftest import wait_until, within
from tests.surface.running import Cli

from holdfast import ConfigurationError, Holdfast
from holdfast.cli import apps, busy, worker
from holdfast.cli.render import Cell, ago, fitted, print_table
from holdfast.tasks.task import raw_job
from holdfast.testing import Kit


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann@desk")
    return Cli(dsn, monkeypatch)


@pytest.fixture
def shop(app: Holdfast, kit: Kit) -> Kit:
    @app.task(name="billing.send_receipt_to_customer")
    def send_receipt(order_id: int) -> int:
        return order_id

    @app.task(name="billing.bad", max_attempts=1)
    def bad() -> None:
        raise ValueError("the printer of the third floor is on fire, and so is the one of the fourth floor")

    return kit


def send(kit: Kit, task: str = "billing.send_receipt_to_customer", **payload: Any) -> str:
    return str(kit.app.send(task, payload).id)


# Ids --------------------------------------------------------------------------------------------------------------


def test_the_beginning_of_an_id_is_enough_wherever_the_job_is(shop: Kit, cli: Cli) -> None:
    done, dead = send(shop, order_id=1), send(shop, "billing.bad")
    shop.run_worker()
    waiting = send(shop, order_id=2)
    for job_id in (done, dead, waiting):
        start = unique_start(job_id, [done, dead, waiting])
        assert cli.json("jobs", "show", start)["job"]["id"] == job_id
        assert cli.json("jobs", "show", start.replace("-", "").upper())["job"]["id"] == job_id
        assert cli.json("explain", start)["job_id"] == job_id
    assert cli.json("dead", "show", unique_start(dead, [done, waiting]))["job"]["id"] == dead
    assert cli.json("jobs", "cancel", unique_start(waiting, [done, dead]))["count"] == 1
    assert shop.job(UUID(waiting))["status"] == "cancelled"


def unique_start(wanted: str, others: list[str]) -> str:
    return next(
        wanted[:n] for n in range(8, 37) if not any(o.startswith(wanted[:n]) for o in others if o != wanted)
    )


def test_a_beginning_of_several_ids_or_of_none_changes_nothing(shop: Kit, cli: Cli) -> None:
    handles = shop.app.enqueue_many(raw_job("billing.bad", {}, {}) for _ in range(5))
    ids = sorted(str(handle.id) for handle in handles)
    start = ids[0][:8]
    assert cli.refused("jobs", "cancel", start) == (
        f"the ids of several jobs begin with {start!r}: {ids[0]}, {ids[1]}, {ids[2]} and more. Write more of it"
    )
    assert {row["status"] for row in shop.jobs()} == {"pending"}
    assert cli.refused("jobs", "show", "ffff-ffff") == (
        "there is no job whose id begins with 'ffff-ffff', or it is finished and no longer kept"
    )


def test_the_beginning_is_enough_of_groups_operations_endpoints_and_deliveries(shop: Kit, cli: Cli) -> None:
    group = str(shop.app.group([raw_job("billing.bad", {}, {})]).id)
    assert cli.json("group", "show", group[:23])["group"]["id"] == group
    begun = cli.json("jobs", "cancel", "--task", "billing.bad", "--background", "--yes")["id"]
    assert cli.json("operations", "show", begun[:8].upper())["id"] == begun
    assert cli.json("operations", "stop", begun[:8])["state"] == "stopped"
    shop.app.webhooks(on=["order.*"])
    shop.create_queues()
    endpoint = cli.json("webhook", "create", "-t", "acme", "--url", "https://acme.example/hooks")["id"]
    assert cli.json("webhook", "show", endpoint[:23])["id"] == endpoint
    delivery = cli.json("webhook", "ping", endpoint[:23])["id"]
    assert cli.json("webhook", "delivery", delivery[:23])["id"] == delivery
    for words, kind in (
        (("group", "show"), "group"),
        (("operations", "show"), "operation"),
        (("webhook", "show"), "endpoint"),
        (("webhook", "delivery"), "delivery"),
    ):
        text = f"there is no {kind} whose id begins with 'ffffffff', or it is no longer kept"
        assert cli.refused(*words, "ffffffff") == text
        assert cli(*words, "order-1").code == 2
    other = cli.json("webhook", "ping", endpoint)["id"]
    same = delivery[:8]  # of one minute
    assert other[:8] == same
    several = f"the ids of several deliveries begin with {same!r}: {delivery}, {other}. Write more of it"
    assert cli.refused("webhook", "delivery", same) == several


@pytest.mark.parametrize("text", ["abc", "xyz", "order-1", "-", "0" * 33])
def test_what_is_no_beginning_of_an_id(cli: Cli, text: str) -> None:
    ran = cli("jobs", "show", "--", text)
    assert ran.code == 2
    assert "is no id of a job, nor the beginning of one: 4 hexadecimal digits or more" in " ".join(
        ran.err.split()
    )


# Tables -----------------------------------------------------------------------------------------------------------

HEADS = ("id", "queue", "task", "note")


def test_a_table_becomes_short_before_it_loses_columns() -> None:
    rows = [[Cell("0" * 36, "0" * 18), "inbox", "t" * 20, "n" * 50]]
    assert fitted(HEADS, rows, 200) == (list(HEADS), [["0" * 36, "inbox", "t" * 20, "n" * 50]])
    assert fitted(HEADS, rows, 80)[1] == [["0" * 18, "inbox", "t" * 20, "n" * 50]]
    assert fitted(HEADS, rows, 70, drop=("queue",))[0] == ["id", "task", "note"]
    assert fitted(HEADS, rows, 40)[0] == ["id", "queue"]
    assert fitted(HEADS, rows, 5)[0] == ["id"]


def test_characters_of_two_columns_are_counted_as_two(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key is there to be copied: a column that is too narrow would cut it."""
    rows = [("注文-17", "1"), ("é-17", "22")]
    print_table(("key", "jobs"), rows, right=("jobs",))
    assert capsys.readouterr().out == "key      jobs\n注文-17     1\né-17       22\n"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(("key", "jobs"), rows, right=("jobs",))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["key", "注文-17", "é-17"]


def test_moments_are_relative_where_there_is_no_room() -> None:
    past, future = (ago(datetime.now(UTC) + timedelta(minutes=n)) for n in (-5, 5))
    assert isinstance(past, Cell)
    assert isinstance(future, Cell)
    assert (past.short, future.short, ago(None)) == ("5 min ago", "in 4 min", "-")


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "list"),
        ("dead", "list"),
        ("dead", "list", "--each"),
        ("workers", "--all"),
        ("status",),
        ("queue", "list"),
        ("doctor", "--only", "runs", "--only", "workers"),
    ],
    ids=" ".join,
)
def test_tables_fit_the_terminal(
    shop: Kit, cli: Cli, words: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = send(shop, order_id=1)
    send(shop, "billing.bad")
    shop.run_worker()
    send(shop, order_id=2)
    shop.sql("SELECT holdfast.create_queue('a_queue_with_quite_a_long_name')")
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = cli.at_terminal(*words)
    assert ran.code == 0
    wide = [line for line in ran.out.splitlines() if len(line.rstrip()) > columns]
    # The path of a socket may be one long word; a command to be pasted stays one line.
    assert [
        line for line in wide if " " in line.strip() and "fix:" not in line and "export " not in line
    ] == []
    if words == ("jobs", "list"):
        assert job_id[:18] in ran.out
        assert "billing.send_receipt_to_customer" in ran.out
        assert "completed" in ran.out


@pytest.mark.parametrize("columns", [80, 100])
def test_every_other_list_fits_too_and_keeps_what_counts(
    shop: Kit, cli: Cli, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "the import of the second of May had every address of the customer twice"
    group = str(shop.app.group([raw_job("billing.bad", {}, {})]).id)
    begun = cli.json("jobs", "retry", "--task", "billing.bad", "--background", "--yes", "--reason", reason)[
        "id"
    ]
    shop.app.webhooks(on=["order.*"])
    shop.create_queues()
    url = "https://hooks.acme-with-a-long-name.example/orders/of/the/shop"
    endpoint = cli.json("webhook", "create", "-t", "acme", "--url", url)["id"]
    delivery = cli.json("webhook", "ping", endpoint)["id"]
    cli.text("queue", "create", "orders", "--ordering", "key")
    keyed = str(shop.app.send("billing.bad", {}, queue="orders", partition_key="customer:of-the-north:17").id)
    assert cli("schedule", "add", "nightly", "--cron", "0 3 * * *", "--task", "billing.bad").code == 0
    shop.app.publish("order.paid", {"order_id": 1, "note": "n" * 80}, key="order:of-the-north:17")
    monkeypatch.setenv("COLUMNS", str(columns))
    seen = {}
    for words in (
        ("group", "list"), ("operations", "list"), ("webhook", "list"), ("webhook", "deliveries", endpoint),
        ("keys", "list", "orders"), ("keys", "show", "orders", "customer:of-the-north:17"), ("schedule", "list"),
        ("schedule", "last", "nightly"), ("events", "list"), ("audit",), ("stats",), ("subscriptions", "list"),
    ):  # fmt: skip
        ran = cli.at_terminal(*words)
        assert ran.code == 0, words
        assert [line for line in ran.lines if len(line.rstrip()) > columns and "fix:" not in line] == [], (
            words
        )
        seen[words[:2]] = ran.out
    for words, whole in (
        (("group", "list"), group),
        (("operations", "list"), begun),
        (("webhook", "list"), endpoint),
        (("webhook", "deliveries"), delivery),
        (("keys", "show"), keyed),
    ):
        assert whole[:18] in seen[words], words
        assert whole not in seen[words] or columns > 80, words
    assert reason[:20] in seen[("operations", "list")]
    assert reason[:20] in seen[("audit",)]
    assert "jobs retry" in seen[("audit",)]
    assert "fault" in seen[("group", "list")]
    assert re.search(r"\d s ago", seen[("audit",)])


def test_a_narrow_list_of_queues_still_says_which_are_paused(
    shop: Kit, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sql("SELECT holdfast.create_queue('a_queue_with_quite_a_long_name')")
    cli.text("queue", "pause", "inbox")
    send(shop, order_id=1)
    monkeypatch.setenv("COLUMNS", "80")
    heads, *rows = cli.at_terminal("queue", "list").out.splitlines()
    assert heads.split()[-1] == "paused"
    assert "pending" in heads
    assert any(row.startswith("inbox") and "by ann@desk" in row for row in rows)


# Colours and bars -------------------------------------------------------------------------------------------------


def test_what_is_wrong_has_a_colour_unless_nobody_wants_it(
    shop: Kit, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    cli.text("queue", "pause", "inbox")
    send(shop, "billing.bad")
    red, yellow = "\x1b[31m", "\x1b[33m"
    wanted = {
        ("status",): f"{red}nobody ",
        ("queue", "list"): f"{yellow}0 s, by ann@desk",
        ("doctor", "--only", "unserved_queue"): f"{yellow}WARNING",
        ("queue", "pause", "nowhere"): f"{red}holdfast:",
    }
    for words, text in wanted.items():
        cli.text("queue", "pause" if words == ("queue", "list") else "resume", "inbox")
        assert text in cli.at_terminal(*words, coloured=True).out, words
    monkeypatch.setenv("NO_COLOR", "1")
    for words in wanted:
        assert "\x1b[3" not in cli.at_terminal(*words, coloured=True).out, words
    monkeypatch.delenv("NO_COLOR")
    for words in wanted:
        ran = cli(*words)
        assert "\x1b" not in ran.out + ran.err, words


def test_what_takes_long_has_a_bar_at_a_terminal(
    shop: Kit, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement waits for a lock until the bar is seen; it is gone at the end."""
    for _ in range(3):
        send(shop, order_id=1)
    drawn = threading.Event()
    real = busy.picture

    def picture(what: str, *args: Any) -> str:
        if what == "cancelled":  # not that of the look before
            drawn.set()
        return real(what, *args)

    monkeypatch.setattr(busy, "picture", picture)

    with shop.connect() as conn, ThreadPoolExecutor() as pool:
        conn.execute("LOCK TABLE holdfast.work IN ACCESS EXCLUSIVE MODE")

        def let_go() -> None:
            drawn.wait(within(8))
            conn.rollback()

        pool.submit(let_go)
        ran = cli.at_terminal("jobs", "cancel", "--state", "pending", "--yes", bar_after=0.01)
    assert ran.code == 0, ran
    assert re.search(r"\r\[ *####? *\] cancelled, \d+ s", ran.out)
    assert re.search(r"\r {78}\rCancel: 3 cancelled\.\n$", ran.out)


def test_a_bar_inside_another_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """To reach the database is a part of a command: what takes long after that has a bar too."""
    said: list[str] = []
    monkeypatch.setattr(busy, "PATIENCE", 0.0)
    monkeypatch.setattr(busy, "_EVERY", 0.001)

    def picture(what: str, *_: Any) -> str:
        said.append(what)
        return what

    monkeypatch.setattr(busy, "picture", picture)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True, write=len, flush=int))
    monkeypatch.setenv("TERM", "xterm")
    with busy.busy("jobs"):
        for what in ("reaching the database", "jobs"):
            with busy.busy("reaching the database") if what != "jobs" else nullcontext():
                said.clear()
                wait_until(lambda: said and said[-1] == what, f"the bar says {what}")  # noqa: B023
    started: list[object] = []
    monkeypatch.setattr(busy, "Busy", started.append)
    with busy.busy("jobs", as_json=True), busy.busy("reaching the database"):
        pass
    assert started == []


def test_a_bar_says_how_far_it_is() -> None:
    assert busy.picture("migrations", 3, 12, 4.0) == "[#####               ] 25% of 12 migrations, 4 s"
    assert busy.picture("working", None, None, 0.4) == "[  ####              ] working, 0 s"
    assert busy.picture("cancelled", 1200, None, 61) == "[                ####] 1,200 cancelled, 1 min"


def test_no_bar_without_a_terminal_and_none_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "PATIENCE", 0.0)
    started: list[object] = []
    monkeypatch.setattr(busy, "Busy", started.append)
    with busy.busy():
        pass
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True, write=started.append, flush=int))
    with busy.busy(as_json=True):
        pass
    monkeypatch.setenv("TERM", "dumb")
    with busy.busy():
        pass
    assert started == []


def test_a_server_that_a_worker_starts_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start of an embedded server makes it: that takes seconds, and longer where nothing is cached."""
    drawn, pictures = threading.Event(), []
    real = busy.picture

    def picture(what: str, *args: Any) -> str:
        pictures.append(what)
        drawn.set()
        return real(what, *args)

    def starts(database: object) -> None:
        drawn.wait(within(8))
        raise ConfigurationError("started")

    monkeypatch.setattr(busy, "PATIENCE", 0.0)
    monkeypatch.setattr(busy, "picture", picture)
    monkeypatch.setattr(apps, "check", starts)
    monkeypatch.setattr(worker, "configure", lambda *_: None)
    monkeypatch.setattr(worker, "load_app", lambda _: None)
    monkeypatch.setattr(worker, "app_database", lambda _, _name: SimpleNamespace(is_embedded=True))
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True, write=len, flush=int))
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(ConfigurationError, match="started"):
        worker.worker_command()
    assert set(pictures) == {"starting PostgreSQL"}


# Nobody there -----------------------------------------------------------------------------------------------------


def test_status_and_doctor_say_at_once_that_nobody_works(shop: Kit, cli: Cli) -> None:
    assert "nobody" not in cli.text("status")
    send(shop, order_id=1)
    said = "nobody      queue inbox has due jobs and no worker. Start one: holdfast worker MODULE:APP --queue inbox"
    assert said in cli.text("status").splitlines()
    assert cli.json("status")["unserved"] == ["inbox"]
    assert (cli("doctor", "--only", "unserved_queue").code, level(cli)) == (0, "warning")
    late = level(cli, "--limit", "stuck=0.001")
    assert late == "error"


def level(cli: Cli, *options: str) -> str:
    """Of what the doctor says about the queue."""
    (check,) = json.loads(cli("doctor", "--only", "unserved_queue", "--json", *options).out)["checks"]
    (finding,) = check["findings"]
    return str(finding["level"])


# Tasks that are called as elsewhere -------------------------------------------------------------------------------


def test_a_task_that_is_called_says_what_to_write(app: Holdfast) -> None:
    @app.task
    def send_receipt(order_id: int) -> None: ...

    @app.task
    async def fetch(order_id: int) -> None: ...

    with pytest.raises(TypeError) as caught:
        send_receipt(1)  # type: ignore[operator]
    assert str(caught.value) == (
        "send_receipt is a task, and a call of it does nothing. To enqueue a job: send_receipt.enqueue(...), or in async "
        "code: await send_receipt.aenqueue(...); to run it here and now: send_receipt.call(...)"
    )
    with pytest.raises(TypeError, match=r"await fetch\.acall\(\.\.\.\)$"):
        fetch(1)  # type: ignore[operator]
    for name in ("delay", "apply_async", "send"):
        with pytest.raises(AttributeError) as missing:
            getattr(send_receipt, name)
        assert str(missing.value).startswith(
            f"a task has no {name}(). To enqueue a job: send_receipt.enqueue(...)"
        )
    with pytest.raises(AttributeError, match="'Task' object has no attribute 'colour'"):
        _ = send_receipt.colour  # type: ignore[attr-defined]
