"""Endpoints of webhooks and relays in trouble: made so, found, and gone when the cause is."""

import base64
import json

import pytest
from tests.doctor.case import Case

from holdfast import Holdfast

RING = "new:" + base64.b64encode(bytes(32)).decode()


def endpoint(case: Case, status: str = "active", reason: str | None = None, hours: int = 30) -> str:
    """One of acme, that was last changed so long ago."""
    with Holdfast(case.url) as app:
        hooks = app.webhooks(on=["*"])
        made = str(hooks.endpoints.create(tenant="acme", url="https://acme.example/hooks").id)
    case.sql("ALTER TABLE holdfast.webhook_endpoints DISABLE TRIGGER note_change")
    case.sql(
        "UPDATE holdfast.webhook_endpoints SET status = %s, disabled_reason = %s,"
        " updated_at = now() - make_interval(hours => %s), "
        " disabled_at = CASE WHEN %s = 'disabled' THEN now() - make_interval(hours => %s) END WHERE id = %s",
        [status, reason, hours, status, hours, made],
    )
    case.sql("ALTER TABLE holdfast.webhook_endpoints ENABLE TRIGGER note_change")
    return made


def fails(case: Case, since: str, error: str = "HTTP 500") -> None:
    case.sql(
        f"UPDATE holdfast.webhook_health SET failing_since = now() - interval '{since}', last_error = %s",
        [error],
    )


def test_failing_endpoint(case: Case) -> None:
    made = endpoint(case)
    assert case.found("failing_endpoint") is None
    fails(case, "59 minutes")
    assert case.found("failing_endpoint") is None
    fails(case, "2 hours")
    finding = case.found("failing_endpoint")
    assert finding is not None
    assert finding["level"] == "warning"
    assert finding["what"] == "1 endpoint that has done nothing but fail for an hour or more"
    assert finding["details"] == [f"{made} of acme: fails for 2 h, HTTP 500"]
    assert finding["fix"] == [f"holdfast webhook show {made}"]
    case.run(finding["fix"][0])
    case.run(f"holdfast webhook disable {made} --yes")
    assert case.found("failing_endpoint") is None
    assert case.found("disabled_endpoint") is None, "by hand, and just now"
    assert case.found("stopped_endpoint") is None


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("gone", "it replied 410"),
        ("failing", "it did nothing but fail for days"),
        ("forbidden_address", "its name led three times to an address that may not be called"),
    ],
)
def test_an_endpoint_that_was_disabled_because_of_what_came_back(case: Case, reason: str, said: str) -> None:
    made = endpoint(case, "disabled", reason, hours=1)
    assert case.found("stopped_endpoint") is None
    finding = case.cure("disabled_endpoint")
    assert finding["level"] == "warning"
    assert finding["details"] == [f"{made} of acme: {said}, 1 h ago"]
    assert finding["fix"] == [f"holdfast webhook enable {made}"]


def test_an_endpoint_that_was_stopped_by_hand_long_ago(case: Case) -> None:
    one, two = endpoint(case, "paused"), endpoint(case, "disabled", "by hand")
    endpoint(case, "paused", hours=2)
    assert case.found("disabled_endpoint") is None
    finding = case.cure("stopped_endpoint")
    assert finding["level"] == "info"
    assert sorted(finding["details"]) == sorted(
        [f"{one} of acme: paused 1 d ago", f"{two} of acme: disabled 1 d ago"]
    )


def test_a_queue_without_a_limit_for_each_endpoint(case: Case) -> None:
    endpoint(case)
    assert case.found("unlimited_endpoints") is None, "there is no queue yet"
    case.run("holdfast queue create webhooks --fair")
    finding = case.found("unlimited_endpoints")
    assert finding is not None
    assert finding["level"] == "warning"
    assert finding["what"] == (
        "queue webhooks has no limit for each key: the concurrency of endpoints does not count"
    )
    assert finding["fix"] == ["holdfast queue set webhooks --key-concurrency 10"]
    case.cure("unlimited_endpoints")


def test_secrets_that_stand_bare(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_SECRET_KEYS", raising=False)
    assert case.found("bare_secrets") is None
    endpoint(case)
    without = case.found("bare_secrets")
    assert without is not None
    assert (without["level"], len(without["fix"])) == ("info", 2)
    assert "HOLDFAST_SECRET_KEYS" in without["fix"][0]
    monkeypatch.setenv("HOLDFAST_SECRET_KEYS", RING)
    finding = case.cure("bare_secrets")
    assert finding["level"] == "warning"
    assert finding["fix"] == ["holdfast webhook reseal"]
    monkeypatch.delenv("HOLDFAST_SECRET_KEYS")
    assert case.found("bare_secrets") is None
    assert case.found("unreadable_secrets") is None, "a shell without any key says nothing of the workers"


def test_unreadable_secrets(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_KEYS", RING)
    endpoint(case)
    assert case.found("unreadable_secrets") is None
    monkeypatch.setenv("HOLDFAST_SECRET_KEYS", RING.replace("new:", "other:"))
    finding = case.found("unreadable_secrets")
    assert finding is not None
    assert (finding["level"], finding["details"]) == ("error", ["1 secret sealed by key 'new'"])
    both = RING.replace("new:", "other:") + "," + RING
    monkeypatch.setenv("HOLDFAST_SECRET_KEYS", both)
    assert case.found("unreadable_secrets") is None
    text = json.dumps(finding)
    assert "acme.example" not in text
    assert "whsec" not in text
