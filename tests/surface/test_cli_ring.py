"""`holdfast ring`: which worker owns which buckets, and how well keys stay where they are."""

from collections.abc import Sequence

import pytest
from tests.surface.running import Cli

from holdfast.model.bucket import BUCKETS, bucket
from holdfast.model.ring import owners
from holdfast.testing import Kit


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(dsn, monkeypatch)


@pytest.fixture
def orders(kit: Kit) -> Kit:
    kit.sql("SELECT holdfast.create_queue('orders', key_ordering => 'key')")
    return kit


def sit(kit: Kit, seats: Sequence[int], status: str = "alive") -> None:
    for seat in seats:
        name = f"host:{seat}:{status}"
        kit.sql(
            "INSERT INTO holdfast.workers (id, host, pid, status, last_seen_at, started_at, queues, tasks,"
            " concurrency, release) VALUES (%s, 'host', %s, %s, holdfast.now() + interval '1 hour', holdfast.now(),"
            " '{orders}', '{}', 1, 'r')",
            [name, seat, status],
        )
        kit.sql("INSERT INTO holdfast.seats VALUES ('orders', %s, %s)", [seat, name])


def finish(kit: Kit, key: str | None, worker: str, count: int, ago: str = "1 minute") -> None:
    kit.sql(
        "INSERT INTO holdfast.archive (slot, id, claim_token, seq, lease_generation, available_at, created_at, claimed_at,"
        " completed_at, attempts, max_attempts, version, crashes, priority, queue, status, task, partition_key, payload,"
        " claimed_by)"
        " SELECT holdfast.archive_slot(t), holdfast.uuid7(), gen_random_uuid(), n, 1, t, t, t, t, 1, 5, 1, 0, 0, 'orders',"
        " 'completed', 'ship', %s, '{}', %s FROM generate_series(1, %s) AS n,"
        " (VALUES (holdfast.now() - %s::interval)) AS u(t)",
        [key, worker, count, ago],
    )


def test_each_worker_with_its_seat_and_its_share(orders: Kit, cli: Cli) -> None:
    sit(orders, [0, 1, 2, 3])
    lines = cli.text("ring").splitlines()
    assert lines[0] == "orders: 4 workers, 1024 buckets"
    assert lines[1].split() == ["seat", "worker", "host", "pid", "buckets", "share"]
    assert [line.split() for line in lines[2:]] == [
        [f"{n}", f"host:{n}:alive", "host", f"{n}", "256", "25.0%"] for n in range(4)
    ]


def test_for_programs_and_with_buckets(orders: Kit, cli: Cli) -> None:
    sit(orders, [0, 2])
    sit(orders, [5], status="draining")
    (found,) = cli.json("ring", "orders")["queues"]
    assert (found["queue"], found["buckets"], found["unserved"], found["empty_seats"]) == (
        "orders",
        1024,
        0,
        [1],
    )
    held = owners([0, 2])
    for worker in found["workers"]:
        spelled = [b for first, last in worker["ranges"] for b in range(first, last + 1)]
        assert spelled == [b for b in range(BUCKETS) if held[b] == worker["seat"]]
        assert worker["buckets"] == len(spelled)
        assert worker["share"] == len(spelled) / BUCKETS
    text = cli.text("ring", "--buckets")
    assert "Empty seats: 1." in text
    (line,) = (line for line in text.splitlines() if line.startswith("Seat 2: "))
    spans = [span.split("-") for span in line.removeprefix("Seat 2: ").split(", ")]
    assert sum(int(span[-1]) - int(span[0]) + 1 for span in spans) == held.count(2)


def test_who_looks_after_a_key(orders: Kit, cli: Cli) -> None:
    sit(orders, [0, 1])
    seat = owners([0, 1])[bucket("order:9182")]
    assert f"Key order:9182: bucket 751, owned by host:{seat}:alive" in cli.text(
        "ring", "--key", "order:9182"
    )
    assert cli.json("ring", "--key", "")["queues"][0]["key"]["bucket"] == 944


def test_a_ring_that_nobody_sits_in(orders: Kit, cli: Cli) -> None:
    sit(orders, [0], status="draining")
    text = cli.text("ring", "orders", "--key", "k", "--buckets")
    assert "orders: 0 workers" in text
    assert "No worker owns 1024 buckets. Start a worker of this queue." in text
    assert f"Key k: bucket {bucket('k')}, nobody's" in text


def test_a_silent_worker_does_not_count(orders: Kit, cli: Cli) -> None:
    sit(orders, [0, 1])
    orders.sql("UPDATE holdfast.workers SET last_seen_at = last_seen_at - interval '2 hours' WHERE pid = 0")
    (found,) = cli.json("ring")["queues"]
    assert [(w["seat"], w["buckets"]) for w in found["workers"]] == [(1, BUCKETS)]


def test_affinity_is_counted_key_by_key(orders: Kit, cli: Cli) -> None:
    finish(orders, "good", "a", 60)
    finish(orders, "bad", "a", 6)
    finish(orders, "bad", "b", 30)
    finish(orders, "bad", "c", 4)
    finish(orders, "old", "a", 10, ago="10 minutes")
    finish(orders, "old", "b", 10, ago="10 minutes")
    finish(orders, None, "a", 5)
    found = cli.json("ring", "--affinity")["affinity"]["orders"]
    assert (found["jobs"], found["kept"], found["keys"], found["share"]) == (100, 90, 2, 0.9)
    assert found["worst"] == [{"key": "bad", "jobs": 40, "kept": 30, "workers": 3, "worker": "b"}]
    text = cli.text("ring", "--affinity")
    assert (
        "Affinity: 90.00% of 100 jobs of 2 keys ran where most of their key's jobs ran (last 5 min)" in text
    )
    assert text.splitlines()[-1].split() == ["bad", "40", "75.0%", "3", "b"]
    assert cli.json("ring", "--affinity", "--last", "1h")["affinity"]["orders"]["jobs"] == 120


def test_nothing_finished_has_no_affinity(orders: Kit, cli: Cli) -> None:
    assert "Affinity: nothing was finished in the last 1 min." in cli.text(
        "ring", "--affinity", "--last", "60s"
    )
    assert cli.json("ring", "--affinity")["affinity"]["orders"]["share"] is None


def test_without_ordered_queues_it_says_how_to_make_one(cli: Cli) -> None:
    assert "holdfast queue create NAME --ordering key" in cli.text("ring")


def test_nothing_in_a_key_can_drive_a_terminal(orders: Kit, cli: Cli) -> None:
    finish(orders, "\x1b[31mred", "a", 1)
    finish(orders, "\x1b[31mred", "b", 2)
    assert "\x1b" not in cli.text("ring", "--affinity", "--key", "\x1b[31mred\nline")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nope"], "queue 'nope' does not exist"),
        (["inbox"], "queue 'inbox' has no ring: it has neither order nor affinity by key"),
        (["--last", "5m"], "--last goes with --affinity"),
        (["--affinity", "--last", "soon"], "--last 'soon' is no span of time"),
        (["--affinity", "--last", "0s"], "--last must be more than 0 s and at most 7 d"),
        (["--affinity", "--last", "2w"], "--last must be more than 0 s and at most 7 d"),
        (["--key", "\udcff"], "no key can be '\\udcff'"),
    ],
)
def test_mistakes(orders: Kit, cli: Cli, words: list[str], says: str) -> None:
    assert says in cli.refused("ring", *words)
