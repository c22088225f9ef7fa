"""`holdfast received`: what was received, and the job of each message."""

import pytest
from tests.surface.running import Cli

from holdfast.testing import Kit


@pytest.fixture
def cli(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(kit.url, monkeypatch)


def test_messages_are_listed_and_found(cli: Cli, kit: Kit) -> None:
    assert cli.text("received", "list") == "No messages.\n"
    for source, message in (("shop", "m1"), ("shop", "m2"), ("bank", "m1")):
        kit.sql("SELECT holdfast.receive(%s, %s, sha256(''), 'paid', '{}')", [source, message])
    found = cli.json("received", "list", "--source", "shop")["received"]
    assert [(row["source"], row["message_id"]) for row in found] == [("shop", "m2"), ("shop", "m1")]
    assert len(cli.json("received", "list", "-n", "2")["received"]) == 2
    assert "m2" in cli.text("received", "list")
    one = cli.json("received", "show", "bank", "m1")
    assert one["job_id"] == str(kit.jobs()[2]["id"])
    assert f"The job: holdfast jobs show {one['job_id']}" in cli.text("received", "show", "bank", "m1")
    assert (
        "no message 'm3' of source 'shop' is known: it was not received, or its id is no longer kept"
        in cli.refused("received", "show", "shop", "m3")
    )
    assert "limit must be between 1 and 1000, not 0" in cli.refused("received", "list", "-n", "0")
