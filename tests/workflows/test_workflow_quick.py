"""Short cuts of a run's code say what the long way says."""

import asyncio
import enum
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workflows.memory_journal import MemoryJournal, Store, code_of, run

from holdfast.errors import InvalidPayload
from holdfast.model.outcome import Cancelled, Completed
from holdfast.shapes.workflows.bodies import fingerprint
from holdfast.shapes.workflows.drive import drive
from holdfast.shapes.workflows.workflow import Workflow
from holdfast.tasks.payload import dump, scalar

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**1200), max_value=10**1200),
    st.floats(),
    st.text(),
    st.lists(st.integers(), max_size=2),
)


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


@given(VALUES)
def test_a_scalar_is_written_as_the_whole_encoder_writes_it(value: object) -> None:
    short = scalar(value)
    if short is not None:
        assert short == dump(value, "result", 1 << 40)
        assert json.loads(short) == value


@pytest.mark.parametrize("value", ["\0", "\ud800", 10**1001, -0.0, float("nan"), Size.LARGE, Colour.RED])
def test_what_the_encoder_would_refuse_or_change_is_left_to_it(value: object) -> None:
    assert scalar(value) is None


@given(st.lists(VALUES, max_size=3))
def test_a_fingerprint_is_that_of_the_json_text(values: list[Any]) -> None:
    try:
        text = json.dumps([values, {}], sort_keys=True, allow_nan=False)
    except ValueError:
        assert fingerprint(tuple(values), {}) is None
        return
    assert fingerprint(tuple(values), {}) == hashlib.sha256(text.encode()).digest()[:16]


async def as_float() -> float:
    return 1


async def as_text() -> str:
    return Colour.RED


async def as_number() -> int:
    return Size.LARGE


async def as_anything() -> Any:
    return Size.LARGE


async def as_pair() -> Any:
    return (1, "two")


async def as_choice() -> int | None:
    return 7


async def plain() -> str:
    return "plain"


@pytest.mark.parametrize("fn", [as_float, as_text, as_number, as_anything, as_pair, as_choice, plain])
async def test_the_code_has_the_same_value_of_the_same_type_live_and_replayed(fn: Any) -> None:
    seen: list[tuple[str, str]] = []

    async def flow(wf: Workflow) -> None:
        value = await wf.step(fn)
        seen.append((type(value).__name__, repr(value)))

    store = Store()
    for _ in range(2):
        assert isinstance(await run(flow, store, verify=False), Completed)
    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_a_bool_is_no_int_and_says_so() -> None:
    async def wrong() -> int:
        return True

    async def flow(wf: Workflow) -> str:
        try:
            await wf.using(max_attempts=1).step(wrong)
        except Exception as error:
            return str(error)
        return "taken"

    ended = await run(flow)
    assert isinstance(ended, Completed)
    assert InvalidPayload.__name__ in (ended.result or "")


async def test_a_body_that_swallows_its_cancel_does_not_keep_a_branch_that_lost() -> None:
    """A cancel of whoever waits for a body is raised there, also where the body returned in spite of it."""
    begun = asyncio.Event()
    after: list[str] = []

    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I stay"
        return "never"

    async def quick() -> str:
        await begun.wait()
        return "quick"

    async def loser(wf: Workflow) -> str:
        kept = await wf.step(stubborn)
        after.append(kept)
        return kept

    async def flow(wf: Workflow) -> list[Any]:
        return list(await wf.first(loser(wf), wf.step(quick)))

    store = Store()
    ended = await run(flow, store, verify=False)
    assert isinstance(ended, Completed)
    assert json.loads(ended.result or "") == [1, "quick"]
    assert after == []
    assert not any("stubborn" in key for key in store.written())


async def test_a_body_that_swallows_the_cancel_of_its_run_is_recorded_as_cancelled_after_it() -> None:
    begun = asyncio.Event()

    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done all the same"
        return "never"

    async def flow(wf: Workflow) -> str:
        await wf.step(stubborn)
        return await wf.step(plain)

    store = Store()
    journal = MemoryJournal(store)
    task = asyncio.create_task(drive(code_of(flow), journal, {}, verify=False))
    await begun.wait()
    journal.cancelled.set()
    assert await task == Cancelled("the run was cancelled")
    assert [row.record.outcome for row in store.rows] == ["done", "cancelled"]
