"""`holdfast workflow check`: open histories against code that is not deployed yet."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast import Holdfast, Run, Signal, Workflow
from holdfast.cli import app as cli
from holdfast.shapes.workflows.checking import Checked, Divergence, check
from holdfast.testing import Kit

GO = Signal("go", str)
ran: list[str] = []


async def reserve() -> str:
    ran.append("reserve")
    return "reserved"


async def charge() -> str:
    ran.append("charge")
    return "charged"


async def ship() -> str:
    ran.append("ship")
    return "shipped"


Flow = Callable[[Workflow], Any]


def app_of(flow: Flow, version: int = 1) -> Holdfast:
    app = Holdfast()

    @app.workflow(name="checkout", version=version)
    async def checkout(wf: Workflow) -> str:
        return str(await flow(wf))

    return app


async def original(wf: Workflow) -> str:
    await wf.step(reserve)
    await wf.step(charge)
    return await wf.signal(GO)


@pytest.fixture
def waiting(holdfast_kit: Callable[..., Kit]) -> Iterator[tuple[Kit, Run[str]]]:
    """A run that has made two steps and waits."""
    ran.clear()
    app = Holdfast()

    @app.workflow(name="checkout")
    async def checkout(wf: Workflow) -> str:
        return await original(wf)

    kit = holdfast_kit(app)
    run = checkout.using(id="order:1").start()
    assert kit.workflows.run_until_waiting(run) == ["go"]
    assert kit.workflows.replay(run) is None
    yield kit, run
    assert ran == ["reserve", "charge"]  # no replay runs a body


async def more_behind(wf: Workflow) -> str:
    said = await original(wf)
    await wf.step(ship)
    return said


async def renamed(wf: Workflow) -> str:
    await wf.step(reserve)
    await wf.step(ship)
    return await wf.signal(GO)


async def shorter(wf: Workflow) -> str:
    await wf.step(reserve)
    return "done"


async def raises(wf: Workflow) -> str:
    await original(wf)
    raise ValueError("behind the wait: never reached")


@pytest.mark.parametrize(
    ("flow", "found"),
    [
        (original, None),
        (more_behind, None),
        (raises, None),
        (renamed, ("", 1, "charge", "ship")),
        (shorter, ("", 1, "charge", None)),
    ],
)
def test_each_edit_is_found_before_it_is_deployed(
    waiting: tuple[Kit, Run[str]], flow: Flow, found: tuple[str, int, str, str | None] | None
) -> None:
    kit, run = waiting
    before = kit.sql("SELECT * FROM holdfast.workflow_steps ORDER BY n")
    checked = check(kit.database, app_of(flow).tasks)
    assert checked.runs == 1
    assert [b.divergence for b in checked.broken] == ([] if found is None else [_parted(found)])
    assert [b.run_id for b in checked.broken] == ([] if found is None else [run.run_id])
    assert kit.sql("SELECT * FROM holdfast.workflow_steps ORDER BY n") == before


def _parted(found: tuple[str, int, str, str | None]) -> Divergence:
    scope, n, recorded, asked = found
    says = f"asks for {asked!r}" if asked else "ends"
    where = f"at {n} in scope {scope!r} the history has {recorded!r}, the code {says}"
    return Divergence(
        scope, n, recorded, asked, f"diverged: {where}; see holdfast workflow check", (recorded,)
    )


def test_a_version_that_is_gone_is_named(waiting: tuple[Kit, Run[str]]) -> None:
    kit, _ = waiting
    checked = check(kit.database, app_of(original, version=2).tasks)
    assert (checked.runs, checked.broken) == (0, [])
    assert [(u.workflow, u.version, u.runs) for u in checked.unknown] == [("checkout", 1, 1)]
    assert check(kit.database, app_of(original).tasks, "another") == Checked(0, [], [])


SOURCE = """
from holdfast import Holdfast, Signal, Workflow

app = Holdfast()


async def reserve() -> str: ...


@app.workflow(name="checkout")
async def checkout(wf: Workflow) -> str:
    await wf.step(reserve)
    return await wf.using(name="refund").step(reserve)
"""


def test_the_command_ends_with_1_and_says_where(
    waiting: tuple[Kit, Run[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, run = waiting
    (tmp_path / "edited_checkout.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    words = ["workflow", "check", "edited_checkout:app", "-d", kit.url]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 1, result.output
    where = "diverged: at 1 in scope '' the history has 'charge', the code asks for 'refund'"
    assert result.stdout.splitlines() == [
        f"checkout v1 order:1 ({run.run_id}): {where}; see holdfast workflow check",
        "1 open run replayed: 1 would part from the code",
    ]
    result = CliRunner().invoke(
        cli, ["workflow", "check", "-a", "edited_checkout:app", "-d", kit.url, "--json"]
    )
    (broken,) = json.loads(result.stdout)["broken"]
    assert (result.exit_code, broken["id"], broken["divergence"]["asked"]) == (1, "order:1", "refund")
    sys.modules.pop("edited_checkout")
