"""`holdfast workflow retry --accept`: a run that diverged from its code goes on with the new one."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast import Holdfast, Run, Signal, Workflow, WorkflowType
from holdfast.cli import app as cli
from holdfast.cli.refusals import words as words_of
from holdfast.errors import ConfigurationError
from holdfast.operate.refusal import Refused
from holdfast.shapes.workflows.verbs import WorkflowVerbs
from holdfast.testing import Kit

GO = Signal("go", str)
Flow = Callable[[Workflow, "Shop"], Awaitable[list[str]]]


async def original(wf: Workflow, shop: "Shop") -> list[str]:
    one = await wf.using(name="reserve").step(shop.body, "reserve")
    two = await wf.using(name="charge").step(shop.body, "charge")
    return [one, two, await wf.signal(GO)]


async def renamed(wf: Workflow, shop: "Shop") -> list[str]:
    one = await wf.using(name="reserve").step(shop.body, "reserve")
    return [one, await wf.using(name="invoice").step(shop.body, "invoice"), await wf.signal(GO)]


async def put_before(wf: Workflow, shop: "Shop") -> list[str]:
    none = await wf.using(name="fraud").step(shop.body, "fraud")
    return [none, *await original(wf, shop)]


async def another_kind(wf: Workflow, shop: "Shop") -> list[str]:
    await wf.using(name="reserve").call(shop.task)
    return await original(wf, shop)


@dataclass
class Shop:
    kit: Kit
    verbs: WorkflowVerbs
    flow: Flow = original
    ran: list[str] = field(default_factory=list)
    task: Any = None
    checkout: WorkflowType[[], list[str]] | None = None

    async def body(self, word: str) -> str:
        self.ran.append(word)
        return word.upper()

    def parted(self, flow: Flow) -> "Run[list[str]]":
        """A run that waited with the old code, and was set aside by the new one."""
        assert self.checkout is not None
        run = self.checkout.using(id="order:1").start()
        assert self.kit.workflows.run_until_waiting(run) == ["go"]
        self.flow = flow
        run.signal(GO("went"))
        asyncio.run(self.kit.arun_worker())
        assert run.state()[0] == "diverged"
        self.ran.clear()
        return run


@pytest.fixture
def shop(app: Holdfast, kit: Kit) -> Shop:
    made = Shop(kit, WorkflowVerbs(kit.database, "ann"))

    @app.task()
    async def task() -> None: ...

    @app.workflow()
    async def checkout(wf: Workflow) -> list[str]:
        return await made.flow(wf, made)

    made.task, made.checkout = task, checkout
    kit.create_queues()
    return made


def test_records_that_the_code_does_not_ask_for_are_no_longer_in_its_way(shop: Shop, app: Holdfast) -> None:
    run = shop.parted(renamed)
    looked = shop.verbs.accept("order:1", app.tasks, dry_run=True)
    assert (looked.changed, looked.about) == (False, ("charge",))
    assert run.state()[0] == "diverged"
    assert shop.verbs.accept("order:1", app.tasks).about == ("charge",)
    assert shop.kit.workflows.run(run) == ["RESERVE", "INVOICE", "went"]
    assert shop.ran == ["invoice"]
    ((action, of),) = [
        (r["action"], r["selection"]) for r in shop.kit.sql("SELECT action, selection FROM holdfast.audit")
    ]
    assert (action, of["run"], of["accept"], of["displaced"]) == (
        "workflow retry",
        str(run.run_id),
        True,
        ["charge"],
    )


def test_a_record_that_is_asked_for_later_is_found_and_no_body_runs_again(shop: Shop, app: Holdfast) -> None:
    run = shop.parted(put_before)
    assert shop.verbs.accept("order:1", app.tasks).about == ("reserve",)
    assert shop.kit.workflows.run(run) == ["FRAUD", "RESERVE", "CHARGE", "went"]
    assert shop.ran == ["fraud"]


def test_what_is_not_left_out_is_refused(shop: Shop, app: Holdfast) -> None:
    run = shop.parted(another_kind)
    with pytest.raises(
        Refused, match="the history has 'reserve' as a step, the code asks for a call"
    ) as caught:
        shop.verbs.accept("order:1", app.tasks)
    assert caught.value.code == "not_accepted"
    with pytest.raises(Refused, match="the app has no version 1 of the workflow checkout"):
        shop.verbs.accept("order:1", Holdfast().tasks)
    shop.flow = original
    shop.verbs.retry("order:1")
    with pytest.raises(Refused, match="run 'order:1' of checkout is open: there is nothing to retry"):
        shop.verbs.accept("order:1", app.tasks)
    assert shop.kit.workflows.run(run) == ["RESERVE", "CHARGE", "went"]


def test_jobs_that_were_called_and_have_not_ended_are_waited_for(shop: Shop, app: Holdfast) -> None:
    run = shop.parted(renamed)
    shop.kit.sql(
        "UPDATE holdfast.workflow_steps SET outcome = 'calling', kind = 'call' WHERE key = 'charge' RETURNING 1"
    )
    with pytest.raises(
        Refused, match="has called jobs that have not ended, and this code does not ask for them: charge"
    ):
        shop.verbs.accept("order:1", app.tasks)
    assert run.state()[0] == "diverged"


def test_a_run_that_was_taken_up_meanwhile_is_left_alone(
    shop: Shop, app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shop.parted(renamed)
    from holdfast.shapes.workflows import retries

    def taken_up(*_: object) -> tuple[str, ...]:
        shop.kit.sql("UPDATE holdfast.work SET lease_generation = lease_generation + 1 RETURNING 1")
        return ("charge",)

    monkeypatch.setattr(retries, "_displaced", taken_up)
    with pytest.raises(
        Refused, match="a worker has taken up run 'order:1' of checkout meanwhile: look again"
    ):
        shop.verbs.accept("order:1", app.tasks)
    places = shop.kit.sql("SELECT ordinal FROM holdfast.workflow_steps WHERE run_id = %s", [run.run_id])
    assert None not in [row["ordinal"] for row in places]


SOURCE = """
from holdfast import Holdfast, Signal, Workflow

app = Holdfast()


async def body(word: str) -> str: ...


@app.workflow()
async def checkout(wf: Workflow) -> list[str]:
    one = await wf.using(name="reserve").step(body, "reserve")
    return [one, await wf.using(name="invoice").step(body, "invoice"), await wf.signal(Signal("go", str))]
"""


def test_the_command_asks_first_and_names_what_loses_its_place(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shop.parted(renamed)
    (tmp_path / "new_checkout.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("HOLDFAST_APP", raising=False)
    words = ["workflow", "retry", "order:1", "--accept", "-d", shop.kit.url]

    def refused(*more: str) -> str:
        result = CliRunner().invoke(cli, [*words, *more])
        assert isinstance(result.exception, ConfigurationError), result.output
        return words_of(result.exception)

    here = ["-a", "new_checkout:app"]
    assert refused().startswith("no app was named")
    assert refused(*here) == (
        "this would let run order:1 of checkout continue with 1 record without a place: charge. Say so: --yes (or look"
        " first: --dry-run)"
    )
    result = CliRunner().invoke(cli, [*words, *here, "--dry-run"])
    assert result.stdout == "Run order:1 of checkout would continue with 1 record without a place: charge.\n"
    assert run.state()[0] == "diverged"
    result = CliRunner().invoke(cli, [*words, *here, "--yes"])
    assert result.stdout == "Run order:1 of checkout continues with 1 record without a place: charge.\n"
    assert shop.kit.workflows.run(run) == ["RESERVE", "INVOICE", "went"]
    sys.modules.pop("new_checkout")
