"""Workflows in tests: `kit.workflows.run(checkout.start(1))` runs one to its end, and time passes by itself.

`crash_everywhere` runs a workflow again and again, each time with its owner lost at another place: what it returns, and what
it did, must be the same every time.
"""

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Protocol, TypeVar
from uuid import UUID

import psycopg

from .. import failpoints
from ..app import Holdfast
from ..db.database import Database
from ..model.clock import Clock
from ..shapes.workflows import bodies
from ..shapes.workflows.checking import Divergence, replay_run
from ..shapes.workflows.declare import KIND
from ..shapes.workflows.faults import WorkflowFailed
from ..shapes.workflows.handles import Run
from ..shapes.workflows.runs import RunFilter, listed
from ..shapes.workflows.states import ENDED
from ..shapes.workflows.store import histories
from ..shapes.workflows.timeline import Entry, timeline
from ..shapes.workflows.workflow_type import WorkflowType
from . import lint, waiting

P = ParamSpec("P")
T = TypeVar("T")
RUN_ID = "<run_id>"
STICKY = 0.05  # seconds that a wait stays in memory: a test has no use for a run that rests
_LOOKS = 10_000
# Where an owner may be lost, as the code of a worker names its places.
POINTS = (
    "claim.after",
    "record.before",
    "record.done",
    "decide.before",
    "decide.done",
    "suspend.before",
    "transact.done",
    "call.before",
    "call.done",
    "child.before",
    "child.done",
    "publish.before",
    "publish.done",
    "era.before",
    "era.done",
    "settle.before",
)


class StillWaiting(AssertionError):
    """The run waits for something that nobody sends."""


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What crash_everywhere() saw. A boundary is a place and a number: `record.before#2` is the second record, unwritten."""

    boundaries: list[str]
    # boundary -> what came of the run, and its effects; "" is the run that nothing befell. Each is another run: where its
    # run_id would stand, as in an idempotency key, there stands RUN_ID.
    outcomes: dict[str, object]
    repeats: dict[str, int]  # step key -> how often its body ran in one run, at most

    def assert_same(self) -> None:
        """Every run ended as the one that nothing befell."""
        wanted = self.outcomes[""]
        wrong = [f"  {name}: {found!r}" for name, found in self.outcomes.items() if found != wanted]
        if wrong:
            lines = "\n".join(wrong)
            raise AssertionError(f"without a crash: {wanted!r}\nwith the owner lost at\n{lines}")


class Mock:
    """What mock() returns."""

    def __init__(self, pair: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
        self._pair = pair

    def __enter__(self) -> None:
        bodies.replaced.append(self._pair)

    def __exit__(self, *_: object) -> None:
        bodies.replaced.remove(self._pair)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


class Desk(Protocol):
    """The part of the kit that runs of workflows need."""

    app: Holdfast
    url: str
    clock: Clock
    database: Database

    async def arun_worker(self) -> None: ...

    def sql(self, query: str, params: Sequence[Any] | None = None) -> list[dict[str, Any]]: ...


class WorkflowKit:
    """`holdfast_kit(app).workflows`."""

    def __init__(self, kit: Desk) -> None:
        self._kit = kit

    def run(self, run: Run[T], *, skip_time: bool = True) -> T:
        """Run workers here until it ends, and return its result. With `skip_time` the clock of the kit moves on whenever
        nothing else is to be done: sleeps, retries and timeouts pass by themselves. Every run that completes is replayed
        once more, without a body. Raises what run.result() raises, StillWaiting when it waits for something that nobody
        sends or runs or its code does something else in a replay, and SwallowsEviction when its code catches BaseException
        and does not raise it again."""
        return self._sync(lambda: self.arun(run, skip_time=skip_time))

    async def arun(self, run: Run[T], *, skip_time: bool = True) -> T:
        """`await kit.workflows.arun(run)`: see run()."""
        if await self._go(run, skip_time, stops=False):
            return await run.aresult(timeout=0)
        raise StillWaiting(waiting.why(self._kit, waiting.view(self._kit, run.run_id), self._queues()))

    def run_until_waiting(self, run: Run[Any], *, skip_time: bool = True) -> list[str]:
        """The same until it waits for a signal, also for one with a timeout. Returns the names; none: it has ended, or
        waits for something else."""
        return self._sync(lambda: self.arun_until_waiting(run, skip_time=skip_time))

    async def arun_until_waiting(self, run: Run[Any], *, skip_time: bool = True) -> list[str]:
        """`await kit.workflows.arun_until_waiting(run)`: see run_until_waiting()."""
        ended = await self._go(run, skip_time, stops=True)
        return [] if ended else self._waits(run)

    def replay(self, run: Run[Any]) -> Divergence | None:
        """Replay the history of an open run against the code of the app, without a body and without a write. None: they go
        together."""
        found = self._kit.sql(
            "SELECT r.id, r.workflow, r.version, w.payload::text AS payload FROM holdfast.workflow_runs r "
            "JOIN holdfast.work w ON w.queue = r.queue AND w.id = r.id WHERE r.id = %s",
            [run.run_id],
        )
        if not found:
            raise ValueError(f"{run!r} has ended: its history is put away")
        (row,) = found
        code = self._kit.app.tasks.declared(KIND)[f"{row['workflow']} version {row['version']}"].code
        (history,) = self._kit.database.run(lambda: histories([str(row["id"])])).values()
        return asyncio.run(replay_run(code, history[0], row["payload"]))

    async def histories(
        self, workflow: WorkflowType[..., Any], limit: int = 100
    ) -> AsyncIterator[Sequence[Entry]]:
        """The records of runs of a workflow, open or ended, the newest run first: `async for entries in
        kit.workflows.histories(checkout): ...`."""
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        found = await self._kit.database.arun(lambda: listed(RunFilter(workflow=workflow.name), None, limit))
        for run in found:
            entries = await self._kit.database.arun(functools.partial(timeline, run.run_id))
            yield entries

    def mock(self, fn: Callable[P, Any], replacement: Callable[P, Any]) -> "Mock":
        """In the block `replacement` is called wherever a step, a transaction or a compensation would call `fn`: `with
        kit.workflows.mock(charge, cheaper):`, or `async with`. Keys are those of `fn`."""
        return Mock((fn, replacement))

    def crash_everywhere(
        self,
        start: Callable[[], Run[Any]],
        *,
        also: Sequence[str] = (),
        effects: Callable[[Run[Any]], object] | None = None,
        points: Sequence[str] = POINTS,
    ) -> CrashReport:
        """Run once to see at which places its owner can be lost; then once for each of them, with the run taken from its
        owner there and given to the next. `start` starts a new run each time. `also`: more places, as
        `holdfast.failpoints.point("charged")` in a step names one. `effects` returns what a run has done outside of it,
        such as its rows in a ledger: it is compared beside the outcome. `points`: these places instead of all that a worker
        has."""
        for given, name in ((also, "also"), (points, "points")):
            if isinstance(given, str):
                raise TypeError(f"{name} takes the names of failpoints in a list: {name}=[{given!r}]")
        crashes = _Crashes(self, effects)
        points = tuple(dict.fromkeys((*points, *also)))
        outcomes: dict[str, object] = {"": crashes.once(start(), points, None)}
        if missed := [name for name in also if f"{name}#1" not in crashes.seen]:
            raise AssertionError(
                f"the run never came to {', '.join(map(repr, missed))}: call holdfast.failpoints.point() there"
            )
        boundaries = list(crashes.seen)
        for boundary in list(boundaries):
            found = crashes.once(start(), points, boundary)
            if boundary in crashes.seen:
                outcomes[boundary] = found
            else:  # records that came together once may come separately
                boundaries.remove(boundary)
        return CrashReport(boundaries, outcomes, dict(crashes.repeats))

    # How runs are run

    def _sync(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def main() -> T:
            try:
                return await make()
            finally:
                await self._kit.database.aclose()

        return asyncio.run(main())

    async def _go(self, run: Run[Any], skip_time: bool, *, stops: bool) -> bool:
        """Whether it has ended."""
        for one in self._kit.app.tasks.declared(KIND).values():
            if one.name == run._workflow:
                lint.check(one.name, one.codec.signature.func)
        with self._as_in_tests():
            for _ in range(_LOOKS):
                await self._kit.arun_worker()
                if (await run.astate())[0] in ENDED:
                    return True
                if stops and self._waits(run):
                    return False
                ahead = self._next() if skip_time else None
                if ahead is None:
                    return False
                self._kit.clock.advance(ahead)
        raise AssertionError(f"{run!r} has not ended after {_LOOKS} moves of the clock")

    @contextlib.contextmanager
    def _as_in_tests(self) -> Iterator[None]:
        declared = list(self._kit.app.tasks.declared(KIND).values())
        before = [one.code for one in declared]
        for one, code in zip(declared, before, strict=True):
            rules = replace(code.rules, sticky=min(code.rules.sticky, STICKY), verify=True)
            object.__setattr__(one, "code", replace(code, rules=rules))
        try:
            yield
        finally:
            for one, code in zip(declared, before, strict=True):
                object.__setattr__(one, "code", code)

    def _waits(self, run: Run[Any]) -> list[str]:
        """The signals that it waits for."""
        return [name for name in waiting.view(self._kit, run.run_id).waits or [] if ":" not in name]

    def _queues(self) -> list[str]:
        """Those that workers of the kit run."""
        return list(self._kit.app.tasks.queues())

    def _next(self) -> float | None:
        """Seconds until the next job is due in a queue that is run here; None: none has a time."""
        (row,) = self._kit.sql(
            "SELECT date_part('epoch', min(w.available_at) - holdfast.now()) AS ahead FROM holdfast.work w"
            " WHERE w.status = 'pending' AND w.available_at < '9000-01-01' AND w.queue = ANY (%s)",
            [self._queues()],
        )
        return None if row["ahead"] is None else max(float(row["ahead"]), 0.0) + 0.001


def _unnamed(value: Any, run_id: UUID) -> Any:
    """The value with RUN_ID for the id of the run, also within texts and containers."""
    if value == run_id:
        return RUN_ID
    if isinstance(value, str):
        return value.replace(str(run_id), RUN_ID)
    if isinstance(value, dict):
        return {_unnamed(key, run_id): _unnamed(one, run_id) for key, one in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_unnamed(one, run_id) for one in value)
    return value


class _Crashes:
    def __init__(self, workflows: WorkflowKit, effects: Callable[[Run[Any]], object] | None) -> None:
        self._workflows = workflows
        self._effects = effects
        self.repeats: Counter[str] = Counter()
        self.seen: dict[str, None] = {}  # the boundaries of the latest run, in their order

    def once(self, run: Run[Any], points: Sequence[str], boundary: str | None) -> object:
        if not run.created:
            raise AssertionError(f"{run!r} was there before: start() is to start a new run each time")
        hits: Counter[str] = Counter()
        ran: Counter[str] = Counter()
        self.seen = {}

        def passed(point: str) -> None:
            hits[point] += 1
            name = f"{point}#{hits[point]}"
            if name == boundary:
                if self._lose():
                    self.seen[name] = None
            elif boundary is None:
                self.seen[name] = None

        def hear(info: bodies.StepInfo) -> None:
            ran[info.idempotency_key.partition(":")[2]] += 1

        bodies.begun.append(hear)
        for point in points:
            failpoints.arm(point, lambda point=point: passed(point))  # type: ignore[misc]
        try:
            outcome = self._outcome(run)
        finally:
            bodies.begun.remove(hear)
            for point in points:
                failpoints.disarm(point)
        self.repeats |= ran
        found = outcome if self._effects is None else (outcome, self._effects(run))
        return _unnamed(found, run.run_id)

    def _outcome(self, run: Run[Any]) -> object:
        try:
            return self._workflows.run(run)
        except WorkflowFailed as error:
            return f"{error.state}: {error.kind}"

    def _lose(self) -> bool:
        """Take every run from its owner, as a sweep does. False: its row is locked, so nobody could."""
        with psycopg.connect(self._workflows._kit.url, autocommit=True) as conn:
            conn.execute("SET lock_timeout = '200ms'")
            try:
                done = conn.execute(
                    "UPDATE holdfast.work w SET status = 'pending', claim_token = '00000000-0000-0000-0000-000000000000'"
                    " FROM holdfast.workflow_runs r WHERE r.id = w.id AND r.queue = w.queue AND w.status = 'processing'"
                )
            except psycopg.errors.LockNotAvailable:
                return False
            return done.rowcount > 0
