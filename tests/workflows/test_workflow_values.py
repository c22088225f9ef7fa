"""Objects that steps return: their keys come back in one order, on the first run and in every replay."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workflows.memory_journal import run
from tests.workflows.support import Runs

from holdfast import AsyncTransaction, Holdfast, NonRetryable, StepFailed, Workflow
from holdfast.model.outcome import Completed
from holdfast.tasks.payload import dump, stored_order
from holdfast.testing import Kit

RESERVED: list[str] = []


async def items() -> dict[str, int]:
    return {"pencil": 1, "pen": 2, "é": 3}


async def items_in(tx: AsyncTransaction) -> Any:
    return [await items()]


async def refuses() -> None:
    raise NonRetryable("no", data={"pencil": 1, "pen": 2})


async def reserve(name: str) -> str:
    RESERVED.append(name)
    return name


@dataclass
class Pencil:
    length: int


@dataclass
class Paper:
    colour: str


async def test_functions_of_a_factory_keep_their_own_types() -> None:
    """They share their code, and nothing else."""

    def finds(kind: Any, value: Any) -> Callable[[], Any]:
        async def find() -> kind:
            return value

        return find

    async def flow(wf: Workflow) -> list[str]:
        found = [await wf.step(finds(Pencil, Pencil(9))), await wf.step(finds(Paper, Paper("red")))]
        return [*map(str, found), str(await wf.step(finds(Annotated[int, []], 5)))]

    outcome = await run(flow)
    assert isinstance(outcome, Completed)
    assert json.loads(outcome.result or "") == ["Pencil(length=9)", "Paper(colour='red')", "5"]


def test_code_that_walks_an_object_does_the_same_after_its_owner_is_lost(app: Holdfast, kit: Kit) -> None:
    @app.workflow(sticky=0.05)
    async def walks(wf: Workflow) -> list[str]:
        done = [await wf.step(reserve, name) for name in await wf.step(items)]
        (more,) = await wf.transact(items_in)
        done += [await wf.step(reserve, name) for name in more]
        try:
            await wf.step(refuses)
        except StepFailed as failed:
            done += [await wf.step(reserve, name) for name in failed.data]
        return done

    def effects(_: object) -> set[str]:
        found = set(RESERVED)
        RESERVED.clear()
        return found

    kit.create_queues()
    RESERVED.clear()
    report = kit.workflows.crash_everywhere(walks.start, effects=effects, points=["record.done"])
    assert len(report.boundaries) > 6
    report.assert_same()
    done = [*["é", "pen", "pencil"] * 2, "pen", "pencil"]
    assert report.outcomes[""] == (done, {"é", "pen", "pencil"})


def test_arguments_of_the_next_era_are_in_the_order_in_which_its_replay_has_them(
    app: Holdfast, kit: Kit
) -> None:
    @app.workflow(sticky=0.05)
    async def rounds(wf: Workflow, left: dict[str, int] | None = None) -> list[list[str]]:
        if left is None:
            wf.continue_as_new({"pencil": 1, "pen": 2, "zz": 3})
        before = [await wf.step(reserve, name) for name in left]
        await wf.sleep(3600)  # the rest of it is a replay
        return [before, list(left)]

    kit.create_queues()
    assert kit.workflows.run(rounds.start()) == [["zz", "pen", "pencil"]] * 2


_values = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
).filter(lambda value: "\\u0000" not in json.dumps(value))


@pytest.fixture
def runs(dsn: str) -> Iterator[Runs]:
    made = Runs.on(dsn)
    yield made
    made.conn.close()


def test_the_order_is_that_of_the_database(runs: Runs) -> None:
    @given(_values)
    def check(value: Any) -> None:
        try:
            text = dump(stored_order(value))
        except ValueError:  # half a character
            return
        assert _pairs(runs.one("SELECT %s::jsonb::text", text)) == _pairs(text)

    check()


def _pairs(text: str) -> Any:
    return json.loads(text, object_pairs_hook=list)


def test_what_has_no_order_to_give_is_left_as_it_is() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert stored_order(deep) is deep
    odd: Mapping[Any, int] = {1: 1, "b": 2}
    assert stored_order(odd) == odd
