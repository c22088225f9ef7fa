"""`holdfast webhook`: every verb of endpoints and deliveries from the shell."""

import base64
from uuid import uuid4

import pytest
from tests.surface.running import Cli
from tests.webhooks.support import STEADY, Site, hooks_of, reply

from holdfast import Holdfast
from holdfast.testing import Kit


@pytest.fixture
def cli(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(kit.url, monkeypatch)


def test_endpoints_are_made_shown_changed_and_removed(
    cli: Cli, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No endpoints" in cli.text("webhook", "list")
    new = ("webhook", "create", "-t", "acme", "--url", "https://acme.example/hooks")
    made = cli.json(*new, "-e", "order.*", "--rate", "5/s", "--header", "x-token: tok-1")
    assert made["secret"]["value"].startswith("whsec_")
    assert (made["events"], made["rate"], made["status"]) == (["order.*"], 5.0, "active")
    second = cli.text(*new[:3], "other", *new[4:], "--scheme", "v1a")
    assert "Its secret, which is not shown again: whpk_" in second
    assert [one["tenant"] for one in cli.json("webhook", "list")["endpoints"]] == ["acme", "other"]
    assert len(cli.json("webhook", "list", "-t", "acme")["endpoints"]) == 1
    one = made["id"]
    shown = cli.text("webhook", "show", one)
    assert "https://acme.example/hooks" in shown
    assert "bare, in use" in shown
    assert "whsec_" not in shown + str(cli.json("webhook", "show", one))
    assert "tok-1" not in shown + str(cli.json("webhook", "show", one))
    cli.text("webhook", "update", one, "--url", "https://acme.example/new", "-e", "a.*", "-e", "b")
    assert cli.json("webhook", "update", one, "--concurrency", "3")["rate"] == 5.0
    assert cli.json("webhook", "update", one, "--rate", "none")["rate"] is None
    cli.text("webhook", "pause", one)
    found = cli.json("webhook", "show", one)
    assert (found["url"], found["events"], found["status"]) == (
        "https://acme.example/new",
        ["a.*", "b"],
        "paused",
    )
    assert cli.json("webhook", "enable", one)["status"] == "active"
    assert "Nothing was changed" in cli.text("webhook", "disable", one, "--dry-run")
    assert cli.json("webhook", "disable", one, "--yes")["disabled_reason"] == "by hand"
    rotated = cli.json("webhook", "rotate", one, "--overlap", "1h")["secret"]["value"]
    assert rotated.startswith("whsec_")
    assert len(cli.json("webhook", "show", one)["secrets"]) == 2
    cli.text("webhook", "rotate", one, "--overlap", "0")
    assert len(cli.json("webhook", "show", one)["secrets"]) == 1
    assert "there is no key to seal with" in cli.refused("webhook", "reseal")
    monkeypatch.setenv("HOLDFAST_SECRET_KEYS", "k1:" + base64.b64encode(bytes(32)).decode())
    assert cli.json("webhook", "reseal") == {"sealed": 3}
    assert "sealed by k1" in cli.text("webhook", "show", one)
    assert cli.json("webhook", "delete", one, "--dry-run")["deleted"] is False
    assert cli.json("webhook", "delete", one, "--yes")["deleted"] is True
    assert f"there is no endpoint {one}" in cli.refused("webhook", "show", one)
    actions = [row["action"] for row in kit.sql("SELECT action FROM holdfast.audit ORDER BY id")]
    assert actions == [
        f"webhook {act}"
        for act in (
            "create",
            "create",
            "update",
            "update",
            "update",
            "pause",
            "enable",
            "disable",
            "rotate",
            "rotate",
            "reseal",
            "delete",
        )
    ]


def test_deliveries_are_listed_shown_and_redelivered(app: Holdfast, cli: Cli, kit: Kit, site: Site) -> None:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site, schedule=[0.01])
    kit.create_queues()
    kit.run_worker()
    site.answer = lambda _: reply(500)
    one = str(hooks.endpoints.create(tenant="acme", url=site.url()).id)
    assert cli.text("webhook", "deliveries", one) == "No deliveries.\n"
    for n in range(2):  # five failures would open the breaker
        app.publish("order.paid", {"n": n}, headers={"tenant": "acme"})
    kit.run_worker()
    failed = cli.json("webhook", "deliveries", one, "--status", "failed")["deliveries"]
    assert len(failed) == 2
    assert "HTTP 500" in cli.text("webhook", "deliveries", one)
    shown = cli.json("webhook", "delivery", failed[0]["id"])
    assert [(a["n"], a["status"], a["address"]) for a in shown["attempts"]] == [
        (1, 500, "127.0.0.1"),
        (2, 500, "127.0.0.1"),
    ]
    assert "127.0.0.1" in cli.text("webhook", "delivery", failed[0]["id"])
    site.reset()
    cli.text("webhook", "redeliver", failed[0]["id"])
    cli.text("webhook", "ping", one)
    kit.run_worker()
    assert len(site.requests) == 2
    dry = cli.json("webhook", "redeliver-range", one, "--from", "1h", "--dry-run")
    assert (dry["count"], dry["begun"]) == (1, False)
    assert "say so: --yes" in cli.refused("webhook", "redeliver-range", one, "--from", "0").lower()
    assert cli.json("webhook", "redeliver-range", one, "--from", "0", "--yes")["count"] == 1
    kit.run_worker()
    assert len(site.requests) == 3
    nobody = str(uuid4())
    assert f"there is no delivery {nobody}" in cli.refused("webhook", "delivery", nobody)
    assert "only must be failed, missing or all" in cli.refused(
        "webhook", "redeliver-range", one, "--from", "0", "--only", "some"
    )
