"""`holdfast operations`, and --background of acts over many."""

import re

import pytest
from tests.surface.running import Cli

from holdfast import Holdfast
from holdfast.testing import Kit


@pytest.fixture
def shop(app: Holdfast, kit: Kit) -> Kit:
    @app.task
    def mail(n: int) -> None: ...

    kit.create_queues()
    for n in range(7):
        mail.enqueue(n=n)
    return kit


@pytest.fixture
def cli(shop: Kit, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann@desk")
    return Cli(shop.url, monkeypatch)


def begin(cli: Cli, *more: str) -> str:
    said = cli.text("jobs", "cancel", "--task", "mail", "--background", "--yes", *more)
    found = re.fullmatch(
        r"Operation (\S+) begun: jobs cancel, 7 jobs\. See: holdfast operations show \1\n", said
    )
    assert found is not None, said
    return found[1]


def test_an_act_in_the_background_is_begun_shown_run_and_listed(cli: Cli) -> None:
    assert cli.text("operations", "list") == "No operations.\n"
    assert "Dry run: jobs cancel would act on 7 jobs" in cli.text(
        "jobs", "cancel", "--task", "mail", "--background", "--dry-run"
    )
    operation = begin(cli, "--reason", "wrong file")
    shown = cli.text("operations", "show", operation)
    assert re.search(r"^state +waiting$", shown, re.MULTILINE)
    assert re.search(r"^looked at +0 of 7$", shown, re.MULTILINE)
    assert re.search(r"^why +wrong file$", shown, re.MULTILINE)
    ran = cli.text("operations", "run", operation)
    assert re.search(r"^state +done$", ran, re.MULTILINE)
    assert re.search(r"^changed +7, 7 cancelled$", ran, re.MULTILINE)
    assert re.search(r"^rate +\S+ a second$", ran, re.MULTILINE)
    _, line = cli.text("operations", "list", "--state", "done").splitlines()
    assert re.search(rf"^{operation} +jobs cancel +done +7 of 7 +\S+ +ann@desk .* wrong file$", line)
    found = cli.json("operations", "show", operation)
    assert (found["done"], found["results"], found["total"]) == (
        7,
        {"cancelled": 7},
        {"count": 7, "capped": False},
    )
    assert [o["id"] for o in cli.json("operations", "list")["operations"]] == [operation]
    (entry,) = cli.json("audit", "--verb", "jobs cancel")["audit"]
    assert (entry["operation"], entry["count"], entry["reason"]) == (operation, 7, "wrong file")
    assert cli.refused("operations", "run", operation) == (
        f"operation {operation} has ended: it is done. Start a new one if there is more to do"
    )


def test_an_operation_is_stopped(cli: Cli) -> None:
    operation = begin(cli)
    assert cli.text("operations", "stop", operation) == f"Operation {operation} stopped. 0 changed of 7.\n"
    assert cli.text("operations", "stop", operation) == (
        f"Operation {operation} had ended: it is stopped. 0 changed of 7.\n"
    )
    assert cli.json("jobs", "list", "--state", "pending")["jobs"] != []


def test_slips(cli: Cli) -> None:
    nobody = "00000000-0000-4000-8000-000000000001"
    assert cli.refused("operations", "show", nobody) == (
        f"there is no operation {nobody}, or it is no longer kept. The list: holdfast operations list"
    )
    assert cli.refused("jobs", "cancel", nobody, "--background") == (
        "jobs that are named are changed at once. Leave --background out"
    )
    assert cli.refused("operations", "list", "--state", "lost") == (
        "there is no state 'lost' of operations (known: waiting, running, done, stopped, failed)"
    )


def test_nothing_that_fits_is_no_mistake(cli: Cli) -> None:
    begun = cli.json("jobs", "retry", "--task", "mail", "--state", "dead", "--background", "--yes")
    assert begun["total"] == {"count": 0, "capped": False}
    ran = cli.json("operations", "run", begun["id"])
    assert (ran["state"], ran["done"]) == ("done", 0)
