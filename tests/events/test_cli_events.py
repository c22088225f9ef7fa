# ruff: noqa: E501
"""`holdfast events` and `holdfast subscriptions`, as a person and as a program use them."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import wait_until
from tests.surface.running import Cli, unsafe

from holdfast import Event, EventsGone, ForeignLog, Holdfast, UnknownSubscription
from holdfast.operate.refusal import Refused
from holdfast.shapes.events.procedures import Subscriptions
from holdfast.testing import Kit

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+"


@pytest.fixture(autouse=True)
def _ann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann")
    monkeypatch.delenv("HOLDFAST_APP", raising=False)


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(dsn, monkeypatch)


@pytest.fixture
def received(app: Holdfast) -> list[int]:
    """What the consumer `send_receipt` got."""
    got: list[int] = []

    @app.on("order.*", name="send_receipt")
    def send_receipt(event: Event[Any]) -> None:
        got.append(event.data["n"])

    return got


def publish(app: Holdfast, *numbers: int, kind: str = "order.paid") -> None:
    app.publish_many([(kind, {"n": n}, f"order:{n % 2}") for n in numbers])


def subscribed(kit: Kit) -> None:
    """A worker makes the subscription, and leaves."""
    kit.run_worker()


def stamped(text: str) -> list[list[str]]:
    return [re.split(r"  +", re.sub(STAMP, "TIME", line)) for line in text.splitlines()]


def acts(kit: Kit) -> list[tuple[str, str, dict[str, Any], int]]:
    rows = kit.sql("SELECT actor, action, selection, count FROM holdfast.audit ORDER BY id")
    return [(r["actor"], r["action"], r["selection"], r["count"]) for r in rows]


# The log ------------------------------------------------------------------------------------------------------------


def test_events_are_listed_page_by_page_and_filtered(app: Holdfast, kit: Kit, cli: Cli) -> None:
    publish(app, 1, 2, 3)
    publish(app, 4, kind="mail.sent")
    assert stamped(cli.text("events", "list", "-n", "2")) == [
        ["position", "time", "type", "key", "data"],
        ["", "1", "TIME", "order.paid", "order:1", '{"n": 1}'],
        ["", "2", "TIME", "order.paid", "order:0", '{"n": 2}'],
        ["There are more: --after 2"],
    ]
    assert [row[1] for row in stamped(cli.text("events", "list", "--after", "2"))] == ["time", "3", "4"]
    found = cli.json("events", "list", "--type", "order.*", "--key", "order:1")
    assert (found["next"], found["cut"]) == (None, False)
    assert [e["position"] for e in found["events"]] == [1, 3]
    event = found["events"][0]
    assert (event["type"], event["version"], event["key"], event["data"]) == (
        "order.paid",
        1,
        "order:1",
        {"n": 1},
    )
    assert (event["era"], event["headers"]) == (1, {})
    assert cli.json("events", "list", "--type", "nobody")["events"] == []
    assert cli.text("events", "list", "--after", "end") == "No events.\n"
    assert len(cli.json("events", "list", "--after", "1h")["events"]) == 4
    assert cli.json("events", "list", "--after", "2200-01-01T00:00Z")["events"] == []


def test_an_event_is_shown_by_position_and_by_id_with_every_digit(app: Holdfast, kit: Kit, cli: Cli) -> None:
    published = app.publish("order.paid", {"n": 1}, key="order:1", headers={"tenant": "acme"})
    kit.sql("SELECT holdfast.publish('sum', '{\"x\": 1.10000000000000000000001}')")
    lines = cli.text("events", "show", "1").splitlines()
    assert lines[:4] == [
        f"event     {published.id}",
        "position  1 (era 1)",
        "type      order.paid, version 1",
        "key       order:1",
    ]
    assert "\n".join(lines[5:]) == 'headers   {\n  "tenant": "acme"\n}\ndata      {\n  "n": 1\n}'
    assert cli.json("events", "show", str(published.id))["position"] == 1
    assert '"x": 1.10000000000000000000001' in cli.text("events", "show", "2")
    assert "1.10000000000000000000001" in cli.text("events", "show", "2", "--json")
    kit.sql("UPDATE holdfast.events SET data = NULL WHERE seq = 1")
    assert cli.text("events", "show", "1").endswith("data      erased\n")
    assert "(erased)" in cli.text("events", "list")
    assert cli.refused("events", "show", "99") == "the log has no event 99"
    assert cli.refused("events", "show", str(uuid4())).startswith("the log has no event ")


def test_what_is_in_an_event_cannot_drive_a_terminal(app: Holdfast, kit: Kit, cli: Cli) -> None:
    app.publish("odd", {"text": "a\x1b[31m\u202eb\nc"}, key="k\n\x1b[2J")
    for words in (("list",), ("show", "1"), ("tail", "--no-follow"), ("tail", "--no-follow", "--json")):
        assert unsafe(cli.text("events", *words)) == [], words


@pytest.fixture
def tail(dsn: str) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """`holdfast events tail` in a process of its own."""
    began: list[subprocess.Popen[str]] = []

    def run(*words: str) -> "subprocess.Popen[str]":
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-m", "holdfast", "events", "tail", "--follow", *words, "-d", dsn]
        began.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return began[-1]

    yield run
    for process in began:
        process.kill()
        process.communicate()


def test_tail_follows_the_log_until_it_is_interrupted(app: Holdfast, kit: Kit, tail: Any) -> None:
    publish(app, *range(20))
    process = tail("--json", "--last", "3", "--type", "order.*")
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline())["position"] for _ in range(3)]
    assert seen == [18, 19, 20]
    publish(app, 1, kind="mail.sent")
    publish(app, 77)
    following = json.loads(process.stdout.readline())
    assert (following["position"], following["data"]) == (22, {"n": 77})
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out, err) == (130, "", "")


def test_tail_begins_where_it_is_told_to(app: Holdfast, kit: Kit, cli: Cli) -> None:
    publish(app, *range(15))

    def positions(*words: str) -> list[int]:
        lines = cli.text("events", "tail", "--no-follow", *words).splitlines()
        return [int(line.split()[0]) for line in lines]

    assert positions() == list(range(6, 16))
    assert positions("--last", "2") == [14, 15]
    assert positions("--since", "13") == [14, 15]
    assert positions("--since", "start", "--key", "order:1") == [2, 4, 6, 8, 10, 12, 14]
    assert positions("--since", "1h") == list(range(1, 16))


# Who reads ----------------------------------------------------------------------------------------------------------


def test_a_subscription_is_paused_shown_reset_and_resumed(
    app: Holdfast, kit: Kit, cli: Cli, received: list[int]
) -> None:
    assert cli.text("subscriptions", "list").startswith("No subscriptions. A worker makes those")
    subscribed(kit)
    publish(app, 1, 2, 3)
    assert stamped(cli.text("subscriptions", "list"))[0] == [
        "subscription", "kind", "reads", "status", "behind", "for", "owner", "note",
    ]  # fmt: skip
    assert cli.text("subscriptions", "pause", "send_receipt") == "Subscription send_receipt is paused.\n"
    assert (
        cli.text("subscriptions", "pause", "send_receipt") == "Subscription send_receipt was not running.\n"
    )
    kit.run_worker()
    assert received == []
    lag = cli.json("events", "lag")
    assert lag["last_position"] == 3
    (row,) = lag["subscriptions"]
    assert (row["name"], row["status"], row["position"], row["lag_events"]) == (
        "send_receipt",
        "paused",
        0,
        3,
    )
    assert row["lag_seconds"] > 0
    assert cli.text("events", "lag").splitlines()[0] == "The log ends at position 3."
    assert re.search(r"paused \d+ s, by ann$", cli.text("subscriptions", "list"), re.MULTILINE)
    shown = cli.text("subscriptions", "show", "send_receipt")
    assert "behind        3 events, " in shown
    assert re.search(r"^paused +\d+ s, by ann$", shown, re.MULTILINE)

    assert cli.text("subscriptions", "reset", "send_receipt", "--to", "1", "--dry-run") == (
        "Dry run: send_receipt would continue after position 1: 1 event of the log not at all. Nothing was changed.\n"
    )
    assert cli.refused("subscriptions", "reset", "send_receipt", "--to", "1").startswith(
        "this would put send_receipt to position 1: 1 event of the log not at all. Say so: --yes"
    )
    assert cli.json("subscriptions", "reset", "send_receipt", "--to", "1", "--yes") == {
        "subscription": "send_receipt", "position": 1, "dry_run": False,
    }  # fmt: skip
    assert cli.text("subscriptions", "resume", "send_receipt") == "Subscription send_receipt is resumed.\n"
    assert (
        cli.text("subscriptions", "resume", "send_receipt") == "Subscription send_receipt was not paused.\n"
    )
    kit.run_worker()
    assert sorted(received) == [2, 3]
    assert [act[:2] for act in acts(kit)] == [
        ("ann", "pause_subscription"),
        ("ann", "reset_subscription"),
        ("ann", "resume_subscription"),
    ]


def test_a_range_is_replayed_to_one_subscription(
    app: Holdfast, kit: Kit, cli: Cli, received: list[int]
) -> None:
    subscribed(kit)
    publish(app, 1, 2, 3)
    kit.run_worker()
    received.clear()
    words = ("subscriptions", "replay", "send_receipt", "--from", "1", "--to", "2", "--again")
    assert cli.text(*words, "--dry-run") == (
        "Dry run: 1 event of the log would be read to send_receipt once more. Nothing was changed.\n"
    )
    done = cli.json(*words, "--yes")
    assert (done["subscription"], done["from"], done["to"], done["dry_run"]) == ("send_receipt", 1, 2, False)
    assert done["replay"].startswith("send_receipt@")
    assert "replay of send_receipt, to position 2" in cli.text("subscriptions", "list")
    kit.run_worker()
    assert received == [2]
    assert [row["name"] for row in cli.json("subscriptions", "list")["subscriptions"]] == ["send_receipt"]


def test_a_stopped_subscription_is_skipped_past_an_event(
    app: Holdfast, kit: Kit, cli: Cli, received: list[int]
) -> None:
    subscribed(kit)
    publish(app, 1, 2)
    assert cli.refused("subscriptions", "skip", "send_receipt") == (
        "send_receipt is not stopped, so there is nothing to skip. "
        "Pause it first: holdfast subscriptions pause send_receipt"
    )
    cli.text("subscriptions", "pause", "send_receipt")
    assert cli.text("subscriptions", "skip", "send_receipt") == (
        "Event 1 is skipped: order.paid, key order:1. Go on: holdfast subscriptions resume send_receipt\n"
    )
    (failure,) = cli.json("subscriptions", "failures", "send_receipt")["failures"]
    assert (failure["position"], failure["kind"], failure["type"]) == (1, "skipped", "order.paid")
    assert stamped(cli.text("subscriptions", "failures", "send_receipt"))[1][2:5] == [
        "skipped",
        "order.paid",
        "order:1",
    ]
    assert cli.json("subscriptions", "failures", "send_receipt", "--key", "other")["failures"] == []
    cli.text("subscriptions", "resume", "send_receipt")
    kit.run_worker()
    assert received == [2]


def test_a_subscription_is_removed_after_a_yes(
    app: Holdfast, kit: Kit, cli: Cli, received: list[int]
) -> None:
    subscribed(kit)
    assert cli.refused("subscriptions", "remove", "send_receipt").startswith(
        "this would forget subscription send_receipt and its position, 0. Say so: --yes"
    )
    assert "Nothing was changed." in cli.text("subscriptions", "remove", "send_receipt", "--dry-run")
    ran = cli.at_terminal("subscriptions", "remove", "send_receipt", typed="y\n")
    assert ran.code == 0
    assert ran.lines[-1].endswith("Subscription send_receipt is removed.")
    assert cli.json("subscriptions", "list") == {"subscriptions": []}


# Mistakes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("subscriptions", "pause", "nope"), "there is no subscription 'nope'. A worker makes those that its code declares"),
        (("subscriptions", "show", "nope"), "there is no subscription 'nope'. A worker makes those that its code declares"),
        (("events", "show", "x"), "'x' is neither a position, such as 17, nor the id of an event"),
        (("events", "list", "--limit", "0"), "--limit must be between 1 and 1000, not 0"),
        (("events", "list", "--after=-1"), "--after '-1' is not a position, a time such as 2026-05-01T10:00Z, or how long ago: 15m, 2h, start, end"),
        (("events", "list", "--after", "soon"), "--after 'soon' is not a position, a time such as 2026-05-01T10:00Z, or how long ago: 15m, 2h, start, end"),
        (("events", "list", "--after", "2026-05-01T10:00"), "--after '2026-05-01T10:00' has no time zone. Write 2026-05-01T10:00Z for UTC, or 2026-05-01T10:00+02:00"),
        (("events", "list", "--after", "9" * 40), "--after 999999999999999999999999999999 is beyond every position"),
        (("events", "list", "--after", "99999999999d"), "--after '99999999999d' is too long ago"),
        (("events", "tail", "--last", "-3", "--no-follow"), "--last must be 0 or more, not -3"),
        (("events", "retention", "--days", "99"), "days must be between 1 and 30, not 99"),
        (("events", "retention", "--hold-bytes", "much"), "--hold-bytes 'much' is no size. Write 500MB, 10GB or plain bytes"),
    ],
)  # fmt: skip
def test_garbage_is_one_clear_line(kit: Kit, cli: Cli, words: tuple[str, ...], said: str) -> None:
    assert cli.refused(*words) == said


def test_python_has_no_shell_text(app: Holdfast, kit: Kit, received: list[int]) -> None:
    subscribed(kit)
    verbs = Subscriptions(kit.database, "ann")
    with pytest.raises(Refused) as refused:
        verbs.skip("send_receipt")
    assert (refused.value.code, refused.value.data) == ("not_stopped", {"subscription": "send_receipt"})
    assert "holdfast " not in str(refused.value)
    with pytest.raises(UnknownSubscription, match=r"there is no subscription 'x' \(known: send_receipt\)"):
        verbs.pause("x")
    with pytest.raises(EventsGone, match="the log has no event 7"):
        verbs.show(7)


# Keeping it ---------------------------------------------------------------------------------------------------------


def test_retention_is_shown_and_changed(app: Holdfast, kit: Kit, cli: Cli) -> None:
    assert cli.text("events", "retention").splitlines() == [
        "Events are kept for 7 days; for a subscriber that is behind, up to 28 days and 10.0 GB. Then it expires.",
        "The log is empty.",
    ]
    publish(app, 1, 2)
    done = cli.json("events", "retention", "--days", "3", "--hold-days", "10", "--hold-bytes", "500MB")
    assert done == {
        "changed": True, "retention_days": 3, "hold_days": 10, "hold_bytes": 500 << 20, "start": 0, "last": 2,
    }  # fmt: skip
    assert "3 days; for a subscriber that is behind, up to 10 days and 500.0 MB" in cli.text(
        "events", "retention"
    )
    assert acts(kit) == [("ann", "event_retention", {"days": 3, "hold_days": 10, "hold_bytes": 500 << 20}, 1)]


def test_a_log_of_another_server_is_taken_over(app: Holdfast, kit: Kit, cli: Cli) -> None:
    publish(app, 1, 2)
    assert cli.text("events", "rebase") == "The log is this server's own: there is nothing to do.\n"
    kit.sql("UPDATE holdfast.event_log SET system_id = system_id + 1")
    publish(app, 3)
    with pytest.raises(ForeignLog):
        app.events.last_position()
    ran = cli("events", "list")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.endswith("so new events cannot be numbered. Run: holdfast events rebase\n")
    assert "would be taken over" in cli.text("events", "rebase", "--dry-run")
    assert "Say so: --yes" in cli.refused("events", "rebase")
    assert cli.text("events", "rebase", "--yes").startswith("The log is taken over.")
    assert [e["data"]["n"] for e in cli.json("events", "list")["events"]] == [1, 2, 3]
    assert ("ann", "rebase_events") in [act[:2] for act in acts(kit)]


def test_events_that_are_gone_are_said_to_be(app: Holdfast, kit: Kit, cli: Cli) -> None:
    publish(app, 1, 2, 3)
    cli.text("events", "lag")
    kit.sql("UPDATE holdfast.event_log SET start_pos = 2")
    assert cli.refused("events", "list", "--after", "1") == (
        "the log begins after position 2; events after 1 are gone"
    )
    assert [e["position"] for e in cli.json("events", "list")["events"]] == [3]


def test_names_of_subscriptions_are_offered(kit: Kit, received: list[int], dsn: str) -> None:
    subscribed(kit)
    line = "holdfast subscriptions pause se"
    asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "3"}
    environment = {**os.environ, **asked, "HOLDFAST_DATABASE_URL": dsn}

    def offered() -> list[str]:
        """A machine under load may need longer than the second that a shell is made to wait."""
        command = [sys.executable, "-m", "holdfast"]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=100, check=True
        )
        return done.stdout.split()

    assert wait_until(offered, "the name is offered") == ["send_receipt"]


def test_a_time_finds_its_position(app: Holdfast, kit: Kit, cli: Cli) -> None:
    publish(app, 1)
    cli.text("events", "lag")  # turns the page
    between = datetime.now(UTC)
    publish(app, 2)
    found = cli.json("events", "list", "--after", between.isoformat())
    assert [e["data"]["n"] for e in found["events"]] == [2]
