"""Random programs, cut at random writes: they end as an undisturbed run does, and no body runs after its record."""

import asyncio
import json
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.workflows.memory_journal import MemoryJournal, Store, code_of

from holdfast.model.outcome import Completed, Released, Suspended
from holdfast.shapes.workflows.bodies import current_step
from holdfast.shapes.workflows.drive import drive
from holdfast.shapes.workflows.faults import StepFailed
from holdfast.shapes.workflows.messages import Signal
from holdfast.shapes.workflows.workflow import Workflow

NOTE = Signal("note", int)
Program = list[Any]

leaf = st.one_of(
    st.tuples(st.just("step"), st.sampled_from("abc")),
    st.tuples(st.just("fail"), st.sampled_from("ab")),
    st.tuples(st.just("sleep"), st.integers(1, 9)),
    st.tuples(st.just("signal"), st.integers(1, 9)),
    st.tuples(st.just("patch"), st.sampled_from("pq")),
    st.tuples(st.just("uuid"), st.none()),
    st.tuples(st.just("publish"), st.sampled_from("xy")),
    st.tuples(st.just("publish now"), st.sampled_from("xy")),
)
programs = st.recursive(
    st.lists(leaf, max_size=4),
    lambda inner: st.lists(
        st.one_of(leaf, st.tuples(st.just("gather"), st.lists(inner, min_size=1, max_size=3))), max_size=4
    ),
    max_leaves=12,
)


def made(  # noqa: C901 one way for each operation
    program: Program, bodies: Counter[str], store: Store
) -> Any:
    """The program as a workflow. Bodies count themselves, and are never called for what is recorded."""

    async def body(word: str, fails: bool) -> str:
        key = current_step().idempotency_key
        bodies[key] += 1
        assert key.partition(":")[2] not in store.written(), f"{key} is recorded, and its body ran again"
        for _ in range(len(key) % 3):
            await asyncio.sleep(0)
        if fails:
            raise ValueError(word)
        return f"{word}:{key}"

    async def play(wf: Workflow, ops: Program) -> list[Any]:  # noqa: C901 as above
        found: list[Any] = []
        for op, value in ops:
            if op == "step":
                found.append(await wf.using(name=value).step(body, value, fails=False))
            elif op == "fail":
                try:
                    await wf.using(name=f"f{value}", max_attempts=1).step(body, value, fails=True)
                except StepFailed as error:
                    found.append(str(error))
            elif op == "sleep":
                await wf.sleep(value * 3600)
            elif op == "signal":
                found.append(bool(await wf.signal(NOTE, timeout=value * 3600)))
            elif op == "patch":
                found.append(wf.patched(value))
            elif op == "uuid":
                found.append(str(wf.uuid()))
            elif op.startswith("publish"):
                sent = wf.publish(value, {"after": len(found)})
                if op == "publish now":
                    await sent
            else:
                found.append(await wf.gather(*(play(wf, inner) for inner in value)))
        return found

    async def flow(wf: Workflow) -> list[Any]:
        return await play(wf, program)

    return flow


async def ended(program: Program, cuts: list[int]) -> tuple[Any, dict[str, str], Counter[str]]:
    """Until it ends, with its owner lost at these writes. The events that it published are those of its records."""
    store, bodies = Store(), Counter[str]()
    flow = made(program, bodies, store)
    left = list(cuts)
    for _ in range(200):
        journal = MemoryJournal(store, left.pop() if left else None)
        outcome = await drive(code_of(flow), journal, {}, verify=True)
        if isinstance(outcome, Suspended):
            store.clock = max(store.clock, min(w.until for w in store.waits if w.until is not None))
        elif not isinstance(outcome, Released):
            assert isinstance(outcome, Completed), outcome
            rows = {row.record.key: str(row.record.outcome) for row in store.rows}
            assert store.events.keys() == {
                row.record.linked for row in store.rows if row.record.kind == "event"
            }
            rows |= {f"event {number}": str(event) for number, event in store.events.items()}
            return json.loads(outcome.result or "null"), rows, bodies
    raise AssertionError("it never ends")


@settings(max_examples=150, deadline=None)
@given(programs, st.lists(st.integers(0, 6), max_size=6))
def test_a_program_that_is_cut_anywhere_ends_as_if_it_was_not(program: Program, cuts: list[int]) -> None:
    whole, keys, once = asyncio.run(ended(program, []))
    cut, keys_of_cut, bodies = asyncio.run(ended(program, cuts))
    assert (cut, keys_of_cut) == (whole, keys)
    assert once.keys() == bodies.keys()
    assert set(once.values()) <= {1}
    assert all(count <= 1 + len(cuts) for count in bodies.values())
