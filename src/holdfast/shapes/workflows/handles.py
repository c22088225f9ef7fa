"""Runs as code outside of them sees them."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast
from uuid import UUID

from ...db.guests import async_guest, sync_guest
from ...errors import InvalidOption, ResultError, ResultExpired, ResultTimeout
from ...model.duration import Duration, seconds
from ...model.text import storable
from ...runtime.handler import PayloadError
from ...store.statement import Flow, Statement
from ...tasks import checks
from ...tasks.definition import Binding
from ...tasks.handle import growing_pauses
from ...tasks.payload import shown
from ...tasks.producer import AppProducer
from . import store
from .faults import WorkflowFailed
from .journal import Look, Started, StartRun
from .messages import Message
from .starting import start_writer_of
from .states import ENDED, State
from .timeline import Entry, timeline

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)
_MAKES_DUE = ("start", "start_with_signal", "start_many", "signal", "cancel")


class RunAccess:
    """The database of the app that a workflow belongs to, or the caller's connection."""

    __slots__ = ("_binding", "_name")

    def __init__(self, binding: Binding, name: str) -> None:
        self._binding = binding
        self._name = name

    def run(self, make: Callable[[], Statement[R] | Flow[R]], conn: object, verb: str) -> R:
        if conn is not None:
            return sync_guest(conn, verb, f"a{verb}").run(make())
        database = cast(AppProducer, self._binding.require(self._name)).database
        done = database.run(make)
        if verb in _MAKES_DUE:
            database.enqueued(None)
        return done

    async def astart(self, new: StartRun, timeout: float | None, conn: object) -> Started:
        """On our own connection, in one statement with other starts of this moment."""
        if conn is None:
            database = cast(AppProducer, self._binding.require(self._name)).database
            return await start_writer_of(database).start(new, timeout)
        return await self.arun(lambda: store.start(new, timeout=timeout), conn, "start")

    async def arun(self, make: Callable[[], Statement[R] | Flow[R]], conn: object, verb: str) -> R:
        if conn is not None:
            return await async_guest(conn, f"a{verb}", verb).arun(make())
        database = cast(AppProducer, self._binding.require(self._name)).database
        done = await database.arun(make)
        if verb in _MAKES_DUE:
            database.enqueued(None)
        return done

    def ready(self, queue: str) -> None:
        """On our own embedded server a declared queue is made when it is first used."""
        cast(AppProducer, self._binding.require(self._name)).ready({queue})

    async def aready(self, queue: str) -> None:
        await cast(AppProducer, self._binding.require(self._name)).aready({queue})


def check_message(message: object, verb: str) -> None:
    if not isinstance(message, Message):
        raise TypeError(
            f"{verb}() takes what a Signal makes, not {shown(message)}. Write {verb}(CANCELLED(payload))"
        )


class Run(Generic[T_co]):
    """A run of a workflow: `run = checkout.start(1, cents=5); run.result(timeout=10)`. Sync methods, and async forms with an
    `a`."""

    __slots__ = ("_decode", "_reach", "_run_id", "_workflow", "created", "id")

    def __init__(
        self,
        reach: RunAccess,
        workflow: str,
        run_id: UUID | None,
        given: str,
        decode: Callable[[str | None], Any],
        *,
        created: bool,
    ) -> None:
        self.id = given
        self.created = created
        self._run_id = run_id
        self._reach = reach
        self._workflow = workflow
        self._decode = decode

    @property
    def run_id(self) -> UUID:
        """The id of its job."""
        if self._run_id is None:
            self._run_id = self._known(self._look(None)).run_id
        return self._run_id

    def result(self, timeout: Duration | None = None) -> T_co:
        """Wait for its end and return its result. Raises WorkflowFailed, ResultTimeout or ResultExpired. Inside the
        transaction that started it, it waits in vain: no worker sees the run before the commit."""
        pauses = growing_pauses(timeout)
        while (found := self._look(None)) is None or found.state not in ENDED:
            pause = next(pauses, None)
            if pause is None:
                raise self._late(timeout, found)
            time.sleep(pause)
        return self._value(found)

    async def aresult(self, timeout: Duration | None = None) -> T_co:
        """`await run.aresult(timeout=10)`: see result()."""
        pauses = growing_pauses(timeout)
        while (found := await self._alook(None)) is None or found.state not in ENDED:
            pause = next(pauses, None)
            if pause is None:
                raise self._late(timeout, found)
            await asyncio.sleep(pause)
        return self._value(found)

    def signal(self, message: Message, *, idempotency_key: str | None = None, conn: object = None) -> bool:
        """Send it a signal: `run.signal(CANCELLED({"by": "customer"}), idempotency_key="click-1")`. False: it has ended, or
        there is no such run. The same idempotency key twice is one signal."""
        make = self._signal(message, idempotency_key)
        return self._reach.run(make, conn, "signal") in ("sent", "duplicate")

    async def asignal(
        self, message: Message, *, idempotency_key: str | None = None, conn: object = None
    ) -> bool:
        """`await run.asignal(CANCELLED({"by": "customer"}))`: see signal()."""
        make = self._signal(message, idempotency_key)
        return await self._reach.arun(make, conn, "signal") in ("sent", "duplicate")

    def cancel(self, reason: str = "", *, conn: object = None) -> bool:
        """Request cancellation; compensations run first. False: it has ended, was cancelled before, or there is no such
        run."""
        return self._reach.run(self._cancel(reason), conn, "cancel") == "requested"

    async def acancel(self, reason: str = "", *, conn: object = None) -> bool:
        """`await run.acancel()`: see cancel()."""
        return await self._reach.arun(self._cancel(reason), conn, "cancel") == "requested"

    def state(self) -> tuple[State, Any]:
        """Its state, and the last value of wf.set_state()."""
        found = self._known(self._look(None))
        return cast(State, found.state), None if found.shown is None else json.loads(found.shown)

    async def astate(self) -> tuple[State, Any]:
        """`await run.astate()`: see state()."""
        found = self._known(await self._alook(None))
        return cast(State, found.state), None if found.shown is None else json.loads(found.shown)

    def timeline(self) -> list[Entry]:
        """All records, of all its eras, in the order in which they were written."""
        return self._reach.run(self._timeline, None, "timeline")

    async def atimeline(self) -> list[Entry]:
        """`await run.atimeline()`: see timeline()."""
        return await self._reach.arun(self._timeline, None, "timeline")

    def _timeline(self) -> Flow[list[Entry]]:
        run_id = self._run_id
        if run_id is None:
            run_id = self._known((yield from store.look(self._workflow, self.id))).run_id
        return (yield from timeline(run_id))

    def __repr__(self) -> str:
        return f"Run({self._workflow} {self.id!r})"

    def _signal(self, message: Message, key: str | None) -> Callable[[], Statement[str]]:
        check_message(message, "signal")
        if key is not None:
            checks.key(key, "idempotency_key", InvalidOption, empty=False)
        return lambda: store.signal(self._workflow, self.id, message.name, message.payload, key)

    def _cancel(self, reason: str) -> Callable[[], Statement[str]]:
        if not isinstance(reason, str):
            raise InvalidOption(f"reason must be a string, not {shown(reason)}")
        return lambda: store.cancel(self._workflow, self.id, storable(reason))

    def _look(self, conn: object) -> Look | None:
        return self._reach.run(lambda: store.look(self._workflow, self.id), conn, "look")

    async def _alook(self, conn: object) -> Look | None:
        return await self._reach.arun(lambda: store.look(self._workflow, self.id), conn, "look")

    def _known(self, found: Look | None) -> Look:
        if found is None:
            raise ResultExpired(
                f"there is no run {self.id!r} of {self._workflow}: it ended longer ago than runs are kept, it was never "
                "started, or its transaction was rolled back"
            )
        return found

    def _value(self, found: Look) -> T_co:
        if found.state != "completed":
            text = f": {found.error}" if found.error else ""
            raise WorkflowFailed(
                f"run {self.id!r} of {self._workflow} {_WORDS.get(found.state, found.state)}{text}",
                kind=(found.error or "").partition(":")[0],
                state=found.state,
            )
        try:
            value: T_co = self._decode(found.result)
        except PayloadError as error:
            raise ResultError(f"run {self.id!r}: {error}") from error
        return value

    def _late(self, timeout: Duration | None, found: Look | None) -> ResultError:
        if found is None:
            return ResultTimeout(
                f"there is no run {self.id!r} of {self._workflow} after {seconds(timeout or 0):g} s. Is its start committed?"
            )
        why = {
            "diverged": "Its code diverged from what it recorded: see holdfast workflow show",
            "paused": "Somebody has to resume it: holdfast workflow resume",
            "suspended": "See what it waits for: holdfast workflow show",
        }.get(found.state, "Is a worker running for its queue?")
        return ResultTimeout(
            f"run {self.id!r} of {self._workflow} is still {found.state} after {seconds(timeout or 0):g} s. {why}"
        )


_WORDS = {"failed": "failed", "cancelled": "was cancelled", "terminated": "was terminated"}
