"""`holdfast keys`, and `holdfast queue` for ordered queues, as a person and as a program use them."""

import re
from collections.abc import Callable
from uuid import UUID

import pytest
from tests.surface.running import Cli, unsafe

from holdfast import Holdfast
from holdfast.errors import ConfigurationError
from holdfast.model.queue import OnDeadLetter
from holdfast.testing import Kit

Shop = Callable[[OnDeadLetter], Kit]


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann@desk")
    return Cli(dsn, monkeypatch)


@pytest.fixture
def shop(app: Holdfast, kit: Kit) -> Shop:
    """An ordered queue with a policy; a job whose event is `bad` fails for good, until its payload is mended."""

    def make(policy: OnDeadLetter) -> Kit:
        app.queue("orders", ordering="key", on_dead_letter=policy)

        @app.task(queue="orders", max_attempts=1)
        def apply(event: str) -> str:
            if event == "bad":
                raise ValueError("a bad\x1b[31m event")
            return event

        kit.create_queues()
        return kit

    return make


def put(kit: Kit, key: str, *events: str) -> list[str]:
    return [
        str(kit.app.send("apply", {"event": event}, queue="orders", partition_key=key).id) for event in events
    ]


def states(kit: Kit, ids: list[str]) -> list[str]:
    return [str(kit.job(UUID(job_id))["status"]) for job_id in ids]


def test_a_blocked_key_from_the_failure_to_its_release(shop: Shop, cli: Cli) -> None:
    kit = shop("block")
    assert cli.text("keys", "blocked") == "No key is blocked, parked or set aside.\n"
    ids = put(kit, "order:1", "a", "bad", "c", "d")
    other = put(kit, "order:2", "a", "b")
    kit.run_worker()
    assert states(kit, ids) == ["completed", "blocked", "pending", "pending"]
    assert states(kit, other) == ["completed", "completed"]
    text = cli.text("keys", "blocked")
    heads, line = text.splitlines()
    assert re.split(r"\s{2,}", heads) == [
        "queue", "key", "why", "behind", "blocking job", "task", "when", "note",
    ]  # fmt: skip
    assert re.split(r"\s{2,}", line)[:6] == ["orders", "order:1", "blocked", "2", ids[1], "apply"]
    assert not unsafe(text.replace("\n", ""))
    (found,) = cli.json("keys", "blocked", "orders")["keys"]
    assert list(found) == ["queue", "key", "why", "job_id", "task", "since", "until", "note", "behind"]
    assert (found["job_id"], found["behind"]) == (ids[1], {"count": 2, "capped": False})
    assert cli.text("keys", "show", "orders", "order:1").splitlines()[:2] == [
        "key     order:1, queue orders",
        "jobs    3",
    ]
    assert "choose what happens to the blocking job" in cli.refused("keys", "release", "orders", "order:1")
    assert cli("jobs", "edit", ids[1], "event=mended").code == 0
    dry = cli.text("keys", "release", "orders", "order:1", "--retry", "--dry-run")
    assert dry.splitlines()[-1] == "Dry run: 1 retried in place. Nothing was changed."
    assert cli.text("keys", "release", "orders", "order:1", "--retry") == "Release: 1 retried in place.\n"
    kit.run_worker()
    assert states(kit, ids) == ["completed"] * 4
    (entry,) = [e for e in cli.json("audit")["audit"] if e["action"] == "keys release"]
    assert (entry["actor"], entry["count"]) == ("ann@desk", 1)


def test_a_parked_key_is_released(shop: Shop, cli: Cli) -> None:
    kit = shop("park")
    ids = put(kit, "k", "bad", "b")
    kit.run_worker()
    assert states(kit, ids) == ["dead_letter", "pending"]
    assert "parked  since" in cli.text("keys", "show", "orders", "k")
    line = cli.text("keys", "list", "orders").splitlines()[1]
    assert re.split(r"\s{2,}", line)[:5] == ["k", "1", ids[1], "apply", "parked"]
    assert cli.text("keys", "release", "orders", "k") == "Release: 1 released.\n"
    kit.run_worker()
    assert states(kit, ids) == ["dead_letter", "completed"]


def test_all_are_released_after_a_yes(shop: Shop, cli: Cli) -> None:
    kit = shop("block")
    assert cli.text("keys", "release", "--all", "--skip") == "Nothing to release.\n"
    ids = [put(kit, f"k{n}", "bad", "b") for n in range(3)]
    kit.run_worker()
    assert cli.refused("keys", "release", "--all", "--skip") == (
        "this would release 3 keys. Say so: --yes (or look first: --dry-run)"
    )
    assert "Release 3 keys?" in cli.at_terminal("keys", "release", "--all", "--skip", typed="n\n").out
    done = cli.json("keys", "release", "orders", "--all", "--skip", "--yes")
    assert (done["count"], done["results"], done["left"]) == (3, {"skipped": 3}, {})
    kit.run_worker()
    assert [states(kit, pair) for pair in ids] == [["dead_letter", "completed"]] * 3


def test_hot_keys_come_with_advice(shop: Shop, cli: Cli) -> None:
    kit = shop("skip")
    assert cli.text("keys", "hot") == "No due job has a key.\n"
    put(kit, "cold", "a")
    put(kit, "hot", *"x" * 100)
    lines = cli.text("keys", "hot").splitlines()
    assert re.split(r"\s{2,}", lines[1]) == ["orders", "hot", "100", "99%", "0", "-"]
    assert lines[-1].startswith("Hot: hot. One key runs one job at a time")
    assert "sharded_key('hot', shards=8, by=...)" in lines[-1]
    assert [k["hot"] for k in cli.json("keys", "hot", "orders")["keys"]] == [True, False]


def test_mistakes(shop: Shop, cli: Cli) -> None:
    shop("block")
    which = "say which keys: QUEUE KEY..., or --all (of one queue: QUEUE --all)"
    assert cli.refused("keys", "release") == which
    assert cli.refused("keys", "release", "orders") == which
    assert cli.refused("keys", "release", "orders", "k", "--all") == which
    both = cli.refused("keys", "release", "orders", "k", "--retry", "--skip")
    assert both == "give --retry or --skip, not both"
    assert "is neither blocked nor parked" in cli.refused("keys", "release", "orders", "k")
    assert "is not ordered by key (ordered are: orders)" in cli.refused("keys", "show", "inbox", "k")
    assert "queue 'order' does not exist" in cli.refused("keys", "list", "order")
    assert "limit must be between 1 and 1000, not 0" in cli.refused("keys", "blocked", "-n", "0")
    assert "say what to change" in cli.refused("queue", "set", "orders")


# Queues ------------------------------------------------------------------------------------------------------------


def test_an_ordered_queue_is_made_listed_and_changed(cli: Cli) -> None:
    assert "ordering" not in cli.text("queue", "list").splitlines()[0]
    assert cli.text("queue", "create", "orders", "--ordering", "key", "--on-dead-letter", "block") == (
        "Queue orders created.\n"
    )
    heads, inbox, orders = cli.text("queue", "list").splitlines()
    names = re.split(r"\s{2,}", heads.strip())
    assert names[-4:] == ["blocked", "parked", "ordering", "paused"]
    assert re.split(r"\s{2,}", orders)[-4:] == ["0", "0", "key, block", "-"]
    assert re.split(r"\s{2,}", inbox)[-2:] == ["-", "-"]
    assert "blocked" in cli.text("status").splitlines()[0]
    changed = cli.json("queue", "set", "orders", "--on-dead-letter", "park")
    assert changed == {
        "name": "orders",
        "changed": True,
        "ordering": "key",
        "on_dead_letter": "park",
        "changes": {},
    }
    assert cli.text("queue", "set", "orders", "--on-dead-letter", "park") == (
        "Queue orders is like this already: ordering key, on dead letter park.\n"
    )
    assert "is not ordered by key" in cli.refused("queue", "set", "inbox", "--on-dead-letter", "park")
    (entry,) = [e for e in cli.json("audit")["audit"] if e["action"] == "queue set"]
    assert entry["selection"] == {"queue": "orders", "ordering": "key", "on_dead_letter": "park"}


@pytest.mark.parametrize(
    ("options", "declared", "said"),
    [
        (("--ordering", "key"), {"ordering": "key", "on_dead_letter": "block"}, "--on-dead-letter block"),
        ((), {"ordering": "key", "on_dead_letter": "park"}, "--ordering key --on-dead-letter park"),
    ],
)
def test_what_a_worker_prints_when_the_rules_differ_makes_them_agree(
    app: Holdfast, kit: Kit, cli: Cli, options: tuple[str, ...], declared: dict[str, str], said: str
) -> None:
    cli.text("queue", "create", "orders", *options)
    app.queue("orders", **declared)  # type: ignore[arg-type]

    @app.task(queue="orders")
    def apply() -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        kit.run_worker()
    message = str(caught.value)
    assert message.endswith(f": holdfast queue set orders {said}")
    cli.text(*message.rsplit(": holdfast ", 1)[1].split())
    kit.run_worker()


def test_a_key_is_held_shown_explained_and_lifted(shop: Shop, cli: Cli) -> None:
    kit = shop("skip")
    assert cli.text("keys", "held") == "No key is held.\n"
    ids = put(kit, "order:1", "a", "b")
    line = cli.text(
        "keys", "hold", "orders", "order:1", "--for", "10m", "--reason", "their\x1b[31m side is down"
    )
    assert re.split(r"\s{2,}", line.splitlines()[1])[:2] == ["orders", "order:1"]
    kit.run_worker()
    assert states(kit, ids) == ["pending", "pending"]
    (found,) = cli.json("keys", "held", "orders")["holds"]
    assert (found["key"], found["jobs"], found["trial"]) == ("order:1", {"count": 2, "capped": False}, False)
    assert "key held" in cli.text("keys", "list", "orders")
    shown = cli.text("keys", "show", "orders", "order:1")
    assert re.search(r"^held    until \S+ .*: .*side is down$", shown, re.MULTILINE)
    assert not unsafe(shown.replace("\n", ""))
    said = cli.text("explain", ids[1])
    assert re.search(r"Its key order:1 is held until .* UTC: .*side is down", said)
    assert "holdfast keys lift orders order:1" in said
    assert cli.json("explain", ids[0])["reasons"][0]["code"] == "key_held"
    assert cli.text("keys", "lift", "orders", "order:1") == "Lifted: 1 key.\n"
    kit.run_worker()
    assert states(kit, ids) == ["completed", "completed"]
    acts = [(entry["action"], entry["actor"], entry["count"]) for entry in cli.json("audit")["audit"]]
    assert acts[:2] == [("keys lift", "ann@desk", 1), ("keys hold", "ann@desk", 1)]


def test_explain_says_how_the_trial_of_a_key_stands(shop: Shop, cli: Cli) -> None:
    kit = shop("skip")
    ids = put(kit, "order:1", "a", "b")
    cli.text("keys", "hold", "orders", "order:1", "--for", "10m", "--trial")
    assert "and then one job of it is tried first." in cli.text("explain", ids[0])
    kit.clock.advance(601)
    kit.run_worker()
    assert states(kit, ids) == ["completed", "pending"]
    (hold,) = cli.json("keys", "held")["holds"]
    assert (hold["trial_job"], hold["trial_state"]) == (ids[0], "over")


def test_holds_that_cannot_be_are_refused(shop: Shop, cli: Cli) -> None:
    shop("skip")
    assert "no queue 'inbox' that is fair or ordered by key" in cli.refused(
        "keys", "hold", "inbox", "a", "--for", "1m"
    )
    assert "--trial needs an end" in cli.refused("keys", "hold", "orders", "a", "--trial")
    assert "512 at most" in cli.refused("keys", "hold", "orders", "a" * 513)
    assert "cannot be held for 0.0 seconds" in cli.refused("keys", "hold", "orders", "a", "--for", "0s")
    assert "key 'a' of queue 'orders' is not held" in cli.refused("keys", "lift", "orders", "a")
    assert "no_such" in cli.refused("keys", "hold", "no_such", "a")


def test_a_key_gets_a_limit_of_its_own_and_loses_it(kit: Kit, cli: Cli) -> None:
    cli.text("queue", "create", "tenants", "--fair", "--key-concurrency", "5")
    assert cli.text("keys", "limits") == "No key has its own limit.\n"
    lines = cli.text("keys", "limit", "tenants", "b\x1b[31m", "a", "--concurrency", "1000").splitlines()
    assert [re.split(r"\s{2,}", line)[0:3:2] for line in lines[1:]] == [["tenants", "1,000"]] * 2
    assert not any(unsafe(line) for line in lines)
    cli.text("keys", "limit", "tenants", "a", "--concurrency", "2")
    found = cli.json("keys", "limits", "tenants")
    assert [(rule["key"], rule["concurrency"]) for rule in found["keys"]] == [("a", 2), ("b\x1b[31m", 1000)]
    assert cli.json("keys", "limits", "--limit", "1")["more"] is True
    assert cli.text("keys", "limit", "tenants", "a", "--concurrency", "none") == (
        "They run as many as any other key.\n"
    )
    acts = [(entry["action"], entry["actor"], entry["count"]) for entry in cli.json("audit")["audit"]]
    assert acts[0] == ("keys limit", "ann@desk", 1)


def test_limits_of_keys_that_cannot_be_are_refused(kit: Kit, cli: Cli) -> None:
    cli.text("queue", "create", "tenants", "--fair")
    said = cli.refused("keys", "limit", "tenants", "a", "--concurrency", "2")
    assert said == (
        "queue 'tenants' has no limit for each key, and so none for a single one. "
        "Give it one: holdfast queue set tenants --key-concurrency 10"
    )
    cli.text(*said.rsplit(": holdfast ", 1)[1].split())
    for wrong in ("0", "-1", "1.5", "many", "1000001"):
        assert "concurrency" in cli.refused("keys", "limit", "tenants", "a", "--concurrency", wrong)
    assert "no_such" in cli.refused("keys", "limit", "no_such", "a", "--concurrency", "2")
    assert "512 at most" in cli.refused("keys", "limit", "tenants", "a" * 513, "--concurrency", "2")
    assert cli.json("keys", "limits")["keys"] == []
