"""Relays in trouble: the destination away, messages refused, keys that keep failing. Found, mended, and gone."""

import sys
from collections.abc import Iterator

import pytest
from tests.conftest import wait_until
from tests.doctor.case import Case

from holdfast import Holdfast

APP = """
from pathlib import Path
from holdfast import Holdfast
from holdfast.transport import Capabilities, Confirmed, Health, Refused, RetryLater

app = Holdfast()
MODE = Path(__file__).parent / "mode"
OUTCOMES = {
    "away": RetryLater("nobody is at home"),
    "missing": Refused("unroutable", "no stream has the subject to.a"),
    "well": Confirmed(),
}


class Moody:
    capabilities = Capabilities(order="key", max_bytes=10_000)

    async def open(self): ...
    async def close(self): ...

    async def publish(self, batch, *, timeout):
        return [OUTCOMES[MODE.read_text()] for _ in batch]

    async def check(self, destinations):
        return Health(MODE.read_text() == "well", MODE.read_text())


app.relay("out", Moody(), on=["order.*"], route="to.{key}", start="start")
app.relay("loose", Moody(), on=["order.*"], route="to.{key}", start="start", refused="skip")
"""


@pytest.fixture
def app(case: Case, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdfast]:
    (case.folder / "relays_app.py").write_text(APP)
    monkeypatch.setenv("HOLDFAST_APP", "relays_app:app")
    with Holdfast(case.url) as made:
        yield made
    sys.modules.pop("relays_app", None)


def mode(case: Case, word: str) -> None:
    (case.folder / "mode").write_text(word)


def publish(app: Holdfast, *keys: str) -> None:
    app.publish_many([("order.paid", {"n": n}, key) for n, key in enumerate(keys)])
    app.events.last_position()  # turns the page


def position(case: Case, name: str) -> int:
    (row,) = case.sql("SELECT position FROM holdfast.subscriptions WHERE name = %s", [name]) or [
        {"position": 0}
    ]
    return int(row["position"])


def kinds(case: Case, name: str) -> list[str]:
    query = "SELECT kind FROM holdfast.event_failures WHERE subscription = %s ORDER BY position"
    return [row["kind"] for row in case.sql(query, [name])]


def test_blocked_subscription(case: Case, app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    mode(case, "away")
    publish(app, "a", "b")
    case.start("relays_app:app")
    said = "SELECT FROM holdfast.subscriptions WHERE problem LIKE '%%nobody is at home'"
    wait_until(lambda: len(case.sql(said)) == 2, "both say so")
    assert case.found("blocked_subscription") is None, "not for a moment"
    case.sql("UPDATE holdfast.event_pages SET at = at - interval '1 hour'")
    case.sql("UPDATE holdfast.events SET created_at = created_at - interval '1 hour'")
    assert case.found("lagging_subscription") is None, "one finding is enough"
    run = case.run

    def run_when_it_is_back(line: str) -> None:
        mode(case, "well")
        run(line)

    monkeypatch.setattr(case, "run", run_when_it_is_back)
    finding = case.cure("blocked_subscription")
    assert finding["level"] == "error"
    assert finding["what"] == "2 subscriptions that cannot continue for now: events wait in the log"
    assert finding["fix"] == ["holdfast relays check loose", "holdfast relays check out"]
    assert finding["details"][1] == (
        "out (relay), 2 events behind, 1 h: the destination is unreachable: nobody is at home"
    )
    wait_until(lambda: position(case, "out") == 2, "it went on")


def test_parked_events_and_skipped_events(case: Case, app: Holdfast) -> None:
    mode(case, "missing")
    publish(app, "a", "b", "a")
    case.start("relays_app:app")
    wait_until(lambda: position(case, "out") == position(case, "loose") == 3, "they are passed")
    wait_until(lambda: kinds(case, "out") == ["parked", "parked", "behind"], "and noted")
    assert kinds(case, "loose") == ["skipped"] * 3
    mode(case, "well")
    parked = case.cure("parked_events")
    assert parked["level"] == "warning"
    assert parked["what"] == (
        "2 keys of 1 subscription parked at an event that was refused, with 1 event behind them: "
        "a parked key waits until somebody decides"
    )
    assert parked["fix"] == ["holdfast subscriptions retry out"]
    assert parked["otherwise"] == ["holdfast subscriptions forget-failures out --yes"]
    assert parked["details"][0].startswith("out (relay), 2 events of 2 keys, the oldest ")
    assert parked["details"][0].endswith(" ago: unroutable: no stream has the subject to.a")
    skipped = case.cure("skipped_events")
    assert skipped["what"] == "3 events skipped: nobody sends or applies them unless you say so"
    assert skipped["fix"] == ["holdfast subscriptions retry loose"]
    assert skipped["otherwise"] == ["holdfast subscriptions forget-failures loose --yes"]
    wait_until(lambda: not kinds(case, "out") + kinds(case, "loose"), "all were sent after all")


def test_what_a_projection_parked_is_retried_by_its_own_command(case: Case) -> None:
    case.sql(
        "INSERT INTO holdfast.subscriptions (name, kind, patterns, position, seq, status, created_at, moved_at)"
        " VALUES ('totals', 'projection', '{order.*}', 1, 1, 'active', now(), now())"
    )
    fail(case, "totals", "parked")
    finding = case.found("parked_events")
    assert finding is not None
    assert finding["fix"] == ["holdfast projection retry totals"]


def fail(case: Case, name: str, kind: str, ago: str = "0") -> None:
    case.sql(
        "INSERT INTO holdfast.event_failures (subscription, position, seq, shard, kind, event_id, type, key, error, at)"
        f" VALUES (%s, 1, 1, 0, %s, gen_random_uuid(), 'order.paid', 'a', 'it is busy', now() - interval '{ago}')",
        [name, kind],
    )


def test_failing_keys(case: Case) -> None:
    case.sql(
        "INSERT INTO holdfast.subscriptions (name, kind, patterns, position, seq, status, created_at, moved_at)"
        " VALUES ('out', 'relay', '{order.*}', 1, 1, 'active', now(), now())"
    )
    fail(case, "out", "spilled", "1 minute")
    assert case.found("failing_keys") is None, "it may still get through"
    case.sql("UPDATE holdfast.event_failures SET at = now() - interval '1 hour'")
    finding = case.found("failing_keys")
    assert finding is not None
    assert finding["level"] == "warning"
    assert finding["what"] == "1 event set aside with failing keys, and retried without success for long"
    assert finding["fix"] == ["holdfast relays check out"]
    assert finding["details"] == ["out (relay), 1 event of 1 key, the oldest 1 h ago: it is busy"]
    case.sql("DELETE FROM holdfast.event_failures")
    assert case.found("failing_keys") is None
