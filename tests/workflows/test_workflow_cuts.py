"""Random programs, cut at random writes, before them and after: they end as a model says that they must, without an engine,
and no body runs after its record."""

import asyncio
import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.workflows.memory_journal import RUN, MemoryJournal, Store, code_of

from holdfast.model.outcome import Cancelled, Completed, DeadLettered, Released, Suspended
from holdfast.shapes.workflows.bodies import current_step
from holdfast.shapes.workflows.drive import drive
from holdfast.shapes.workflows.faults import StepFailed
from holdfast.shapes.workflows.messages import Signal
from holdfast.shapes.workflows.outgoing import event_id
from holdfast.shapes.workflows.workflow import Workflow

NOTE = Signal("note", int)
MOST = 150
LOST = "lost"  # of a branch that another wins against
Program = list[Any]

in_branches = st.one_of(
    st.tuples(st.just("step"), st.sampled_from("abc")),
    st.tuples(st.just("fail"), st.sampled_from("ab")),
    st.tuples(st.just("transact"), st.sampled_from("ab")),
    st.tuples(st.just("first"), st.sampled_from("ab")),
    st.tuples(st.just("sleep"), st.integers(1, 9)),
    st.tuples(st.just("signal"), st.integers(1, 9)),
    st.tuples(st.just("uuid"), st.none()),
    st.tuples(st.just("publish"), st.sampled_from("xy")),
    st.tuples(st.just("publish now"), st.sampled_from("xy")),
)
# A patch in a branch that is cut before its marker is written may go the old way: see test_a_patch_in_a_branch below.
pushing = st.one_of(in_branches, st.tuples(st.just("push"), st.none()))
leaf = st.one_of(in_branches, st.tuples(st.just("patch"), st.sampled_from("pq")))


def parallel(ops: Any) -> Any:
    return st.tuples(
        st.just("gather"),
        st.lists(
            st.recursive(
                st.lists(ops, max_size=4),
                lambda inner: st.lists(
                    st.one_of(ops, st.tuples(st.just("gather"), st.lists(inner, min_size=1, max_size=3))),
                    max_size=4,
                ),
                max_leaves=9,
            ),
            min_size=1,
            max_size=3,
        ),
    )


programs = st.lists(st.one_of(leaf, parallel(in_branches)), max_size=4)
sagas = st.lists(st.one_of(pushing, parallel(pushing)), max_size=4)


def made(  # noqa: C901 one way for each operation
    program: Program, bodies: Counter[str], store: Store, *, pushes: bool = False
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

    async def undo() -> None:
        await body("undo", False)

    async def writes(_: Any, word: str) -> str:
        return await body(word, False)

    async def slow(word: str) -> str:
        for _ in range(12):
            await asyncio.sleep(0)
        return await body(word, False)

    async def loses(wf: Workflow) -> str:
        """Its step may be recorded before the other has won, or not."""
        if pushes:
            wf.on_failure(undo)
        await wf.using(name=LOST).step(body, LOST, fails=False)
        await wf.sleep(999 * 3600)
        return LOST

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
            elif op == "transact":
                found.append(await wf.using(name=value).transact(writes, value))
            elif op == "first":
                wins = wf.using(name=value).step(slow, value)
                found.append(await wf.first(loses(wf), wins))
            elif op == "sleep":
                await wf.sleep(value * 3600)
            elif op == "signal":
                found.append(bool(await wf.signal(NOTE, timeout=value * 3600)))
            elif op == "patch":
                found.append(wf.patched(value))
            elif op == "uuid":
                found.append(str(wf.uuid()))
            elif op == "push":
                wf.on_failure(undo)
            elif op.startswith("publish"):
                sent = wf.publish(value, {"after": len(found)})
                if op == "publish now":
                    await sent
            else:
                found.append(await wf.gather(*(play(wf, inner) for inner in value)))
        return found

    async def flow(wf: Workflow) -> list[Any]:
        found = await play(wf, program)
        if pushes:
            raise KeyError("it fails")
        return found

    return flow


@dataclass
class Model:
    """What the program returns and records, by the rules of keys alone."""

    rows: dict[str, str] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def key(self, scope: str, name: str, outcome: str = "done") -> str:
        self.counts[scope, name] += 1
        number = self.counts[scope, name]
        key = f"{scope}/" * bool(scope) + name + (f"#{number}" if number > 1 else "")
        self.rows[key] = outcome
        return key

    def inner(self, scope: str) -> str:
        """Where the branches of the next parallel call of this scope are."""
        self.counts[scope, "+"] += 1
        return f"{scope}/" * bool(scope) + f"g{self.counts[scope, '+']}"

    def play(self, program: Program, scope: str = "") -> list[Any]:
        found: list[Any] = []
        for op, value in program:
            found += self.one(op, value, scope, len(found))
        return found

    def one(self, op: str, value: Any, scope: str, before: int) -> list[Any]:
        """What this operation adds to the result."""
        match op:
            case "step" | "transact":
                return [f"{value}:{RUN}:{self.key(scope, value)}"]
            case "fail":
                key = self.key(scope, f"f{value}", "failed")
                return [f"{key} failed after 1 attempt: ValueError: {value}"]
            case "first":
                step = self.key(scope, value)
                self.inner(scope)
                self.key(scope, "first")
                return [[1, f"{value}:{RUN}:{step}"]]
            case "sleep":
                self.key(scope, "sleep")
                return []
            case "signal":
                self.key(scope, "note", "timed_out")
                return [False]
            case "patch":
                return [True]
            case "uuid":
                self.counts[scope, "-"] += 1
                text = f"{RUN}\n0\n{scope}\nuuid\n{self.counts[scope, '-']}"
                return [str(UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=4))]
            case "publish" | "publish now":
                number = event_id(RUN, 0, self.key(scope, f"{value}.published"))
                self.rows[f"event {number}"] = str((value, {"after": before}))
                return []
        branches = self.inner(scope)
        return [[self.play(inner, f"{branches}.{n}") for n, inner in enumerate(value)]]


async def ended(program: Program, cuts: list[tuple[int, bool]]) -> tuple[Any, dict[str, str], Counter[str]]:
    """Until it ends, with its owner lost at these writes. The events that it published are those of its records."""
    store, bodies = Store(), Counter[str]()
    flow = made(program, bodies, store)
    left = list(cuts)
    for _ in range(200):
        at, after = left.pop() if left else (None, False)
        journal = MemoryJournal(store, at, after=after)
        outcome = await drive(code_of(flow), journal, {}, verify=True)
        if isinstance(outcome, Suspended):
            store.clock = max(store.clock, min(w.until for w in store.waits if w.until is not None))
        elif not isinstance(outcome, Released):
            assert isinstance(outcome, Completed), outcome
            rows = {row.record.key: str(row.record.outcome) for row in store.rows}
            for found in (rows, bodies):
                for key in [key for key in found if key.rpartition("/")[2] == LOST]:
                    del found[key]
            assert store.events.keys() == {
                row.record.linked for row in store.rows if row.record.kind == "event"
            }
            rows |= {f"event {number}": str(event) for number, event in store.events.items()}
            return json.loads(outcome.result or "null"), rows, bodies
    raise AssertionError("it never ends")


def test_a_patch_in_a_branch_is_remembered_when_the_end_is_verified() -> None:
    program: Program = [("gather", [[("step", "a"), ("patch", "p")], [("step", "a")]])]
    (((_, new_way), _),), _, _ = asyncio.run(ended(program, []))
    assert new_way is True


@settings(max_examples=MOST, deadline=None)
@given(programs, st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=6))
def test_a_program_that_is_cut_anywhere_ends_as_if_it_was_not(
    program: Program, cuts: list[tuple[int, bool]]
) -> None:
    model = Model()
    wanted = model.play(program)
    whole, keys, once = asyncio.run(ended(program, []))
    cut, keys_of_cut, bodies = asyncio.run(ended(program, cuts))
    assert cut == whole == wanted
    assert keys_of_cut == keys
    # A marker of a patch is written if anything comes after it.
    assert {key: row for key, row in keys.items() if not key.startswith("patch/")} == model.rows
    assert once.keys() == bodies.keys()
    assert set(once.values()) <= {1}
    assert all(count <= 1 + len(cuts) for count in bodies.values())


async def undone(program: Program, cuts: list[tuple[int, bool]], cancel_at: int) -> Store:
    """Until it has failed, or was cancelled, which is asked for after so many owners. From then on nothing waits."""
    store, bodies = Store(), Counter[str]()
    flow = made(program, bodies, store, pushes=True)
    left = list(cuts)
    for turn in range(200):
        store.cancel = store.cancel or turn == cancel_at
        at, after = left.pop() if left else (None, False)
        outcome = await drive(code_of(flow), MemoryJournal(store, at, after=after), {}, verify=False)
        if isinstance(outcome, Suspended):
            assert not store.cancel, f"it was cancelled, and waits: {store.waits}"
            store.clock = max(store.clock, min(w.until for w in store.waits if w.until is not None))
        elif not isinstance(outcome, Released):
            assert isinstance(outcome, DeadLettered | Cancelled), outcome
            assert isinstance(outcome, DeadLettered) or store.cancel
            assert all(count <= 1 + len(cuts) for count in bodies.values())
            return store
    raise AssertionError("it never ends")


@settings(max_examples=MOST, deadline=None)
@given(sagas, st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=6), st.integers(0, 9))
def test_what_was_pushed_is_undone_last_first_wherever_the_run_is_cut_or_cancelled(
    program: Program, cuts: list[tuple[int, bool]], cancel_at: int
) -> None:
    """In branches too, and in those that lost."""
    store = asyncio.run(undone(program, cuts, cancel_at))
    keys = [row.record.key for row in store.rows]
    pushed = [key.removeprefix("saga/") for key in keys if key.startswith("saga/")]
    made_undone = [key.removeprefix("undo/") for key in keys if key.startswith("undo/")]
    last = [
        key for key in made_undone if key not in pushed
    ]  # pushed after the last record: nothing was done since
    assert [key for key in made_undone if key not in last] == pushed[::-1]
    assert made_undone[: len(last)] == last
