"""What the command line shows of chains and groups, and --replace-key."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.surface.running import Cli

from holdfast import DeadLetter, Holdfast
from holdfast.testing import Kit


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(dsn, monkeypatch)


class Shop:
    def __init__(self, app: Holdfast, kit: Kit) -> None:
        self.app, self.kit = app, kit

        @app.task
        async def good(n: int) -> None: ...

        @app.task
        async def bad(n: int) -> None:
            raise DeadLetter("no good")

        self.good, self.bad = good, bad


@pytest.fixture
def shop(app: Holdfast, kit: Kit) -> Shop:
    return Shop(app, kit)


def facts(text: str) -> dict[str, str]:
    """The lines `name   value` before the first block."""
    lines = text.partition("\n\n")[0].splitlines()
    return {line[:12].strip(): line[12:] for line in lines}


def test_jobs_show_tells_the_parent_the_follow_ups_and_the_children(shop: Shop, cli: Cli) -> None:
    first = shop.good.using(then=shop.bad.using(then=shop.good.job(3)).job(2)).enqueue(1)
    text = cli.text("jobs", "show", str(first.id))
    assert "\nfollow-ups\n" in text
    assert '"task": "bad"' in text
    assert "children" not in text
    shop.kit.run_worker()
    text = cli.text("jobs", "show", str(first.id))
    assert "follow-ups" not in text  # they are its children now
    (child,) = shop.kit.jobs(shop.bad)
    assert f"\nchildren\n  {child['id']}  bad in inbox, dead_letter\n" in text
    shown = cli.text("dead", "show", str(child["id"]))
    assert facts(shown)["parent"] == str(first.id)
    assert '"task": "good"' in shown
    report = cli.json("jobs", "show", str(child["id"]))
    assert (report["job"]["parent_id"], report["job"]["follow_ups"][0]["payload"]) == (
        str(first.id),
        {"n": 3},
    )
    assert cli.json("jobs", "show", str(first.id))["children"][0]["id"] == str(child["id"])


def test_groups_are_listed_and_shown(shop: Shop, cli: Cli) -> None:
    assert cli.text("group", "list") == "No groups.\n"
    done = shop.app.group([shop.good.job(1)], then=shop.good.job(0))
    waits = shop.app.group([shop.good.job(1), shop.bad.job(2)], then=shop.good.job(0))
    shop.kit.run_worker()
    lines = cli.text("group", "list").splitlines()
    assert lines[0].split() == [
        "group",
        "state",
        "wants",
        "total",
        "open",
        "discarded",
        "created",
        "finished",
        "fault",
    ]
    assert [line.split()[:6] for line in lines[1:]] == [
        [str(waits.id), "open", "completed", "2", "1", "0"],
        [str(done.id), "finished", "completed", "1", "0", "0"],
    ]
    assert [g["group"]["id"] for g in cli.json("group", "list", "--open")["groups"]] == [str(waits.id)]
    shown = facts(cli.text("group", "show", str(waits.id)))
    assert (shown["state"], shown["wants"], shown["open"]) == ("open", "all 2 completed", "1")
    assert shown["members"] == "1 completed, 1 dead_letter"
    assert facts(cli.text("group", "show", str(done.id)))["callback"] == str(done.status().callback_ids[0])
    assert cli.json("group", "show", str(waits.id))["members"] == {"completed": 1, "dead_letter": 1}
    member = facts(cli.text("jobs", "show", str(waits.jobs[0].id)))
    assert member["group"] == f"{waits.id}, open, 1 of 2 completed"


def test_a_discarded_member_is_seen(shop: Shop, cli: Cli) -> None:
    group = shop.app.group([shop.bad.job(1)], then=shop.good.job(0))
    shop.kit.run_worker()
    cli.text("dead", "discard", str(group.jobs[0].id), "--yes")
    shown = facts(cli.text("group", "show", str(group.id)))
    assert (shown["state"], shown["open"], shown["discarded"]) == ("broken", "1", "1")


def test_a_group_that_is_none_is_refused(shop: Shop, cli: Cli) -> None:
    unknown = str(uuid4())
    assert (
        cli.refused("group", "show", unknown)
        == f"there is no group {unknown}, or it is finished and no longer kept"
    )


def test_enqueue_with_a_replace_key_changes_the_job_that_waits(shop: Shop, cli: Cli) -> None:
    def enqueue(n: int, *more: str) -> Any:
        return cli("enqueue", "good", f"n:={n}", "--replace-key", "k", "--delay", "1h", *more)

    first = enqueue(1)
    second = enqueue(2)
    assert second.out == first.out
    assert "note: the job that waited under this replace key was changed" in second.err
    row = shop.kit.job(UUID(first.out.strip()))
    assert (row["payload"], row["status"]) == ({"n": 2}, "scheduled")
    audit = [(e["action"], e["selection"].get("replaced")) for e in cli.json("audit")["audit"]]
    assert audit == [("enqueue", True), ("enqueue", None)]
    assert enqueue(3, "--idempotency-key", "x").code == 2
    clash = cli("enqueue", "bad", "n:=1", "--replace-key", "k")
    assert (clash.code, "which is of another task or partition key. Use another key" in clash.err) == (
        2,
        True,
    )
