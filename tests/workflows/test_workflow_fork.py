"""`holdfast workflow fork`: another run with the first part of what a run has recorded."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from tests.workflows.support import Runs, step
from typer.testing import CliRunner

from holdfast import Holdfast, Run, Signal, Workflow, WorkflowFailed, WorkflowType
from holdfast.cli import app as cli
from holdfast.cli.refusals import words as words_of
from holdfast.operate.refusal import Refused
from holdfast.shapes.workflows.forks import Forked
from holdfast.shapes.workflows.journal import Record
from holdfast.shapes.workflows.verbs import WorkflowVerbs
from holdfast.testing import Kit

GO = Signal("go", str)


@dataclass
class Shop:
    kit: Kit
    verbs: WorkflowVerbs
    ran: list[str] = field(default_factory=list)
    fails: bool = False

    async def body(self, word: str) -> str:
        self.ran.append(word)
        if self.fails and word == "ship":
            raise ValueError("no truck")
        return f"{word} {len(self.ran)}"

    def fork(self, run: Run[Any], step: str, **options: Any) -> Forked:
        return self.verbs.fork(str(run.run_id), step, **options)

    def go_on(self, workflow: WorkflowType[..., Any], fork: Forked) -> Any:
        """What the new run returns, and which bodies it ran."""
        self.ran.clear()
        return self.kit.workflows.run(workflow.get(fork.id)), list(self.ran)

    def keys(self, fork: Forked) -> list[str]:
        rows = "SELECT key FROM holdfast.workflow_steps WHERE run_id = %s ORDER BY n"
        return [row["key"] for row in self.kit.sql(rows, [fork.run_id])]


@pytest.fixture
def runs(dsn: str) -> Iterator[Runs]:
    made = Runs.on(dsn)
    yield made
    made.conn.close()


@pytest.fixture
def shop(kit: Kit) -> Shop:
    kit.sql("SELECT holdfast.create_queue('workflows')")
    return Shop(kit, WorkflowVerbs(kit.database, "ann"))


@pytest.fixture
def checkout(app: Holdfast, shop: Shop) -> WorkflowType[[], list[str]]:
    @app.workflow()
    async def checkout(wf: Workflow) -> list[str]:
        seen = [str(wf.uuid()), str(wf.now())]
        wf.on_failure(shop.body, "give back")
        seen.append(await wf.using(name="reserve").step(shop.body, "reserve"))
        seen.append(str(wf.now()))
        wf.on_failure(shop.body, "refund")
        seen.append(await wf.using(name="charge", max_attempts=1).step(shop.body, "charge"))
        await wf.sleep(timedelta(hours=1))
        seen.append(await wf.signal(GO))
        seen.append(await wf.using(name="ship", max_attempts=1).step(shop.body, "ship"))
        return seen

    return checkout


def completed(shop: Shop, checkout: WorkflowType[[], list[str]]) -> tuple[Run[list[str]], list[str]]:
    run = checkout.using(id="order:1", tags=["vip"]).start()
    run.signal(GO("now"), idempotency_key="k1")
    return run, shop.kit.workflows.run(run)


def test_a_fork_makes_again_what_follows_and_nothing_before(
    shop: Shop, checkout: WorkflowType[[], list[str]]
) -> None:
    run, first = completed(shop, checkout)
    assert shop.ran == ["reserve", "charge", "ship"]
    fork = shop.fork(run, "ship", new_id="order:1 again")
    assert (fork.id, fork.step, fork.run.run_id) == ("order:1 again", "ship", run.run_id)
    assert (len(fork.kept), fork.kept[-1]) == (6, "go")
    result, ran = shop.go_on(checkout, fork)
    assert ran == ["ship"]
    assert result[:-1] == first[:-1], "what was kept is as it was: results, random numbers and times"
    assert run.result() == first


def test_a_fork_of_an_open_run_leaves_it_alone_and_has_its_signals(
    shop: Shop, checkout: WorkflowType[[], list[str]]
) -> None:
    run = checkout.using(id="order:1").start()
    assert shop.kit.workflows.run_until_waiting(run) == ["go"]
    run.signal(GO("both"))
    fork = shop.fork(run, "charge")
    assert fork.id == str(fork.run_id)
    result, ran = shop.go_on(checkout, fork)
    assert result[-2] == "both"
    assert sorted(ran) == ["charge", "ship", "ship"], "one of the old run, which goes on too"
    assert shop.kit.workflows.run(run)[-2] == "both"


def test_a_signal_that_a_later_record_took_is_there_again(
    shop: Shop, checkout: WorkflowType[[], list[str]]
) -> None:
    run, _ = completed(shop, checkout)
    result, ran = shop.go_on(checkout, shop.fork(run, "charge"))
    assert (ran, result[-2]) == (["charge", "ship"], "now")


def test_a_fork_is_named_by_number_and_may_have_another_version(
    shop: Shop, checkout: WorkflowType[[], list[str]], app: Holdfast
) -> None:
    run, _ = completed(shop, checkout)
    (number,) = [e.n for e in run.timeline() if e.key == "charge"]

    @app.workflow(name="checkout", version=2)
    async def second(wf: Workflow) -> list[str]:
        one = await wf.using(name="reserve").step(shop.body, "reserve")
        return [one, await wf.using(name="invoice").step(shop.body, "invoice")]

    fork = shop.fork(run, str(number), version=2)
    assert fork.step == "charge"
    result, ran = shop.go_on(second, fork)
    assert (ran, result[0]) == (["invoice"], "reserve 1")


def test_the_lineage_is_shown_and_the_act_is_in_the_audit(
    shop: Shop, checkout: WorkflowType[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann")
    run, _ = completed(shop, checkout)

    def call(*words: str) -> str:
        result = CliRunner().invoke(cli, ["workflow", *words, "-d", shop.kit.url])
        assert result.exit_code == 0, result.output
        return result.stdout

    said = call("fork", "order:1", "--from", "ship", "--id", "order:2")
    assert said == "Run order:1 of checkout is forked as order:2: 6 records kept, made again from ship on.\n"
    shown = call("show", "order:2")
    assert f"fork:      of {run.run_id}, from ship on" in shown.splitlines()
    assert "tags:      vip" in shown.splitlines()
    found = json.loads(call("show", "order:2", "--json"))["run"]
    assert (found["forked_from"], found["forked_key"]) == (str(run.run_id), "ship")
    ((actor, action, of),) = [
        (row["actor"], row["action"], row["selection"])
        for row in shop.kit.sql("SELECT actor, action, selection FROM holdfast.audit")
    ]
    assert (actor, action, of["run"], of["from"]) == ("ann", "workflow fork", str(run.run_id), "ship")
    assert of["new"] == found["run_id"]
    answer = json.loads(call("fork", "order:1", "--from", "ship", "--json"))
    assert (answer["forked_from"], answer["from"], len(answer["kept"])) == (str(run.run_id), "ship", 6)


def test_a_fork_in_a_gather_keeps_what_other_branches_had_by_then(app: Holdfast, shop: Shop) -> None:
    @app.workflow()
    async def both(wf: Workflow) -> list[str]:
        async def line(name: str) -> str:
            await wf.signal(Signal(f"{name}_may", str))
            return await wf.using(name="make").step(shop.body, name)

        return list(await wf.gather(line("left"), line("right")))

    run = both.start()
    run.signal(Signal("right_may", str)("x"))
    shop.kit.workflows.run_until_waiting(run)
    run.signal(Signal("left_may", str)("x"))
    shop.kit.workflows.run(run)
    assert shop.ran == ["right", "left"]
    result, ran = shop.go_on(both, shop.fork(run, "g1.0/make"))
    assert (result, ran) == (["left 1", "right 1"], ["left"])


def test_a_fork_goes_on_in_the_last_era(app: Holdfast, shop: Shop) -> None:
    @app.workflow()
    async def bills(wf: Workflow, month: int = 1) -> list[str]:
        made = await wf.using(name="bill").step(shop.body, f"bill {month}")
        if month < 3:
            wf.continue_as_new(month + 1)
        return [made, str(wf.uuid()), await wf.using(name="mail").step(shop.body, f"mail {month}")]

    run = bills.using(id="a").start()
    first = shop.kit.workflows.run(run)
    fork = shop.fork(run, "mail")
    result, ran = shop.go_on(bills, fork)
    assert (result[:2], ran) == (first[:2], ["mail 3"])
    with pytest.raises(
        Refused, match="record 0 of run 'a' of bills is of era 0, and the input of that is gone"
    ):
        shop.fork(run, "0")


def test_a_child_that_ended_is_known_to_the_fork_and_an_open_one_is_in_its_way(
    app: Holdfast, shop: Shop
) -> None:
    @app.workflow()
    async def inner(wf: Workflow) -> str:
        return await wf.signal(GO)

    @app.workflow()
    async def outer(wf: Workflow) -> list[str]:
        child = await wf.using(id="the child").start(inner)
        one = await wf.using(name="one").step(shop.body, "one")
        return [one, await child.result()]

    run = outer.using(id="a").start()
    shop.kit.workflows.run_until_waiting(run)
    with pytest.raises(
        Refused, match="children that it started before that step have not ended: inner"
    ) as caught:
        shop.fork(run, "one")
    assert caught.value.code == "fork_open"
    inner.get("the child").signal(GO("hello"))
    assert shop.kit.workflows.run(run) == ["one 1", "hello"]
    assert shop.go_on(outer, shop.fork(run, "one")) == (["one 1", "hello"], ["one"])


def test_what_was_undone_is_not_gone_on_with(shop: Shop, checkout: WorkflowType[[], list[str]]) -> None:
    shop.fails = True
    run = checkout.using(id="order:1").start()
    run.signal(GO("now"))
    with pytest.raises(WorkflowFailed):
        shop.kit.workflows.run(run)
    assert shop.ran == ["reserve", "charge", "ship", "refund", "give back"]
    shop.fails = False
    for later in ("ship", "charge"):
        with pytest.raises(Refused, match="has undone what is before that step") as caught:
            shop.fork(run, later)
        assert caught.value.code == "fork_undone"
    fork = shop.fork(run, "reserve")
    assert (fork.kept, shop.keys(fork)) == ((), [])
    assert shop.go_on(checkout, fork)[1] == ["reserve", "charge", "ship"]


def test_a_fork_that_makes_no_sense_is_refused_and_nothing_is_written(runs: Runs, dsn: str) -> None:
    def refused(*words: str) -> str:
        result = CliRunner().invoke(cli, ["workflow", "fork", *words, "-d", dsn])
        assert isinstance(result.exception, Refused), result.output
        return words_of(result.exception)

    grant = runs.claim(runs.start("order:1"))
    runs.record(
        grant,
        step("reserve"),
        Record("thumbs", "call", "calling", 1),
        Record("saga/x", "compensation", "done"),
    )
    runs.record(grant, step("ship"))
    list_it = f". What it has: holdfast workflow timeline {grant.id}"
    assert (
        refused("order:1", "--from", "nothing")
        == f"run 'order:1' of checkout has not recorded 'nothing'{list_it}"
    )
    assert refused("order:1", "--from", "9") == f"run 'order:1' of checkout has not recorded '9'{list_it}"
    assert refused("order:1", "--from", "2") == f"record 2 of run 'order:1' of checkout has no place{list_it}"
    assert refused("order:1", "--from", "ship") == (
        "jobs that it called before that step have not ended: thumbs. Only run 'order:1' of checkout would hear of their "
        "end. Fork it when they have ended, or from an earlier step"
    )
    assert refused("order:1", "--from", "thumbs", "--id", "order:1") == (
        "checkout has a run 'order:1' already. Choose another: --id"
    )
    runs.conn.execute("DELETE FROM holdfast.work")
    assert (
        refused("order:1", "--from", "thumbs") == "the input of run 'order:1' of checkout is no longer kept"
    )
    assert runs.one("SELECT count(*) FROM holdfast.workflow_runs") == 1
    assert runs.one("SELECT count(*) FROM holdfast.audit") == 0
