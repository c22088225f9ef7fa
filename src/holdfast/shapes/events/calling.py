"""The function of a projection is called in the transaction that moves the position: ours, or one that the user opens.

Failures are kept apart here, because they are treated differently: the function failed (FunctionFailed), it ended a
transaction that is not its own (Broken), the subscription has another owner (LeaseLost), or the database is unreachable or
(DatabaseUnavailable, Contended).
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ... import failpoints
from ...db.database import Database
from ...db.faults import Contended, Forbidden, LockTimeout
from ...db.guests import AsyncGuest, Guest, async_guest, sync_guest
from ...errors import ConfigurationError, DatabaseUnavailable, LeaseLost
from ...model.text import describe
from ...runtime.threads import Threads
from ...store.statement import Flow, Statement
from . import store
from .apply import Apply
from .event import Event
from .store import Held

THREADS = Threads()  # of sync functions, in every loop of this process
_CONTENDED = ("40001", "40P01")
_FAILED = ("PendingRollbackError", "TransactionManagementError")  # of SQLAlchemy and Django

Events = Sequence[Event[Any]]


class FunctionFailed(Exception):
    """The function raised, or did not return in time. Its writes are rolled back."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class Broken(Exception):
    """The projection cannot work as it is written: another try would do harm, or fail in the same way."""


class Call:
    """One transaction. `first` locks the position's row; `events` are the function's argument, or `read` finds them
    when the row is locked; `finish` moves the position. Each returns a false value to give up: LeaseLost. `move` is a finish
    of one statement that does nothing outside of this transaction."""

    def __init__(
        self,
        database: Database,
        apply: Apply,
        first: Callable[[], Flow[Held | None]],
        finish: Callable[[], Flow[bool]],
        events: Events = (),
        read: Callable[[], Statement[Events] | Flow[Events]] | None = None,
        move: Callable[[str], Flow[bool]] | None = None,
    ) -> None:
        self._database = database
        self._apply = apply
        self._steps = first, finish
        self._events = events
        self._read = read
        self._move = move
        self._held: Held | None = None
        self._phase = "opening"  # then: held, called, moving or finishing, finished
        self._failed: FunctionFailed | None = None

    async def run(self) -> None:
        try:
            await (self._run_async() if self._apply.is_async else self._run_sync())
        except (asyncio.CancelledError, Broken, LeaseLost):
            raise
        except BaseException as error:
            if self._failed is not None:  # whatever the user's own block did with it
                raise self._failed from self._failed.error
            judged = self._judged(error)
            if judged is error:
                raise
            raise judged from error
        if self._failed is not None:
            raise self._failed from self._failed.error
        if self._phase != "finished":
            raise Broken("using= ended its block without an error, although the transaction failed")

    # Steps ---------------------------------------------------------------------------------------------------------------

    def _first(self) -> Flow[bool]:
        self._held = yield from self._steps[0]()
        self._phase = "held"
        return self._held is not None

    def _finish(self, _: object = None) -> Flow[bool]:
        assert self._held is not None
        done = False
        if self._move is not None:
            self._phase = "moving"
            done = yield from self._move(self._held.xid)
        if not done:
            yield from self._check_transaction(self._held)
            self._phase = "finishing"
            done = self._move is None and (yield from self._steps[1]())
        self._phase = "finished"
        failpoints.point("projection.commit")
        return done

    def _check_transaction(self, held: Held) -> Flow[None]:
        xid = yield from store.current_xid()
        if xid != held.xid:
            raise Broken(
                f"{self._name} ended the transaction that it was called in, so its position was not moved. "
                "Its writes may be committed: check them. Leave COMMIT and ROLLBACK to Holdfast; use savepoints instead"
            )

    @property
    def _name(self) -> str:
        return self._apply.func.__name__

    def _arguments(self) -> Sequence[Any]:
        if self._apply.many:
            return [list(self._events)] if self._events else []
        return self._events

    # Async ---------------------------------------------------------------------------------------------------------------

    async def _run_async(self) -> None:
        apply = self._apply
        if apply.using is None:
            await self._database.atransact(self._acall, self._finish, apply.timeout, self._first)
            return
        opened = self._opened("__aenter__", "async with")
        async with opened as conn:
            guest = async_guest(conn, "projection", "projection")
            if not await guest.in_transaction():
                raise _no_transaction(guest)
            if not await guest.arun(self._first()):
                raise LeaseLost
            await self._acall(conn)
            if not await guest.arun(self._finish()):
                raise LeaseLost

    async def _acall(self, tx: object) -> None:
        if self._read is not None:
            self._events = await self._database.arun(self._read)
        limit = asyncio.timeout(self._apply.timeout)
        try:
            async with limit:
                for argument in self._arguments():
                    await self._apply.func(tx, argument)
        except BaseException as error:
            cancelled = issubclass(type(error), asyncio.CancelledError)
            task = asyncio.current_task()
            if cancelled and task is not None and task.cancelling():
                raise  # the worker stops, or the subscription is lost
            late = limit.expired() and issubclass(type(error), TimeoutError)
            raise self._blamed(self._too_long() if late else error, tx) from error
        self._phase = "called"

    # Sync ----------------------------------------------------------------------------------------------------------------

    async def _run_sync(self) -> None:
        limit = asyncio.timeout(self._apply.timeout)
        try:
            async with limit:
                await THREADS.run(self._sync)
        except TimeoutError as error:
            if not limit.expired():
                raise
            if self._held is None:
                raise DatabaseUnavailable(
                    f"the row of the position was not to be had within {self._apply.timeout:g} s"
                ) from error
            held = self._held  # the thread cannot be ended, but its transaction can
            await self._database.arun(lambda: store.end_backend(held))
            raise FunctionFailed(self._too_long()) from error

    def _sync(self) -> None:
        apply = self._apply
        if apply.using is None:
            self._database.transact(self._call, self._finish, apply.timeout, self._first)
            return
        opened = self._opened("__enter__", "with")
        with opened as conn:
            guest = sync_guest(conn, "projection", "projection")
            if not guest.in_transaction():
                raise _no_transaction(guest)
            if not guest.run(self._first()):
                raise LeaseLost
            self._call(conn)
            if not guest.run(self._finish()):
                raise LeaseLost

    def _call(self, tx: object) -> None:
        if self._read is not None:
            self._events = self._database.run(self._read)
        try:
            for argument in self._arguments():
                returned = self._apply.func(tx, argument)
                if inspect.isawaitable(returned) or inspect.isgenerator(returned):
                    raise TypeError(
                        f"{self._name} returned a {type(returned).__name__}, which does nothing. Declare it with async def"
                    )
        except BaseException as error:
            raise self._blamed(error, tx) from error
        self._phase = "called"

    # Errors --------------------------------------------------------------------------------------------------------------

    def _opened(self, enter: str, how: str) -> Any:
        opened: Any = self._apply.using() if self._apply.using is not None else None
        if not hasattr(type(opened), enter):
            raise Broken(
                f"using= returned a {type(opened).__name__}, which {self._name} cannot open by: {how} using() as conn"
            )
        return opened

    def _too_long(self) -> TimeoutError:
        return TimeoutError(f"{self._name} ran longer than its timeout of {self._apply.timeout:g} s")

    def _blamed(self, error: BaseException, conn: object) -> BaseException:
        """The error of the function: its own failure, or that of the database below it."""
        ours = _of_the_database(error, conn)
        if ours is not None:
            return ours
        self._failed = FunctionFailed(error)
        return self._failed

    def _judged(self, error: BaseException) -> BaseException:
        """An error from around the function."""
        if isinstance(error, FunctionFailed | DatabaseUnavailable | Contended | LockTimeout | Forbidden):
            return error
        if isinstance(error, ConfigurationError | TypeError) and self._phase == "opening":
            return Broken(describe(error).summary)
        state = _state(error)
        if state == "55P03":
            return LockTimeout(describe(error).summary)
        swallowed = state == "25P02" or type(error).__name__ in _FAILED
        if self._phase in ("called", "moving") and swallowed:
            return FunctionFailed(
                RuntimeError(
                    f"{self._name} caught a database error, and its transaction had failed by then. "
                    "Let the error out, or run the statement in a savepoint"
                )
            )
        if self._phase in ("opening", "held"):
            return _of_the_database(error, None) or error
        is_theirs = self._phase == "called" or (self._phase == "moving" and state is None)
        if is_theirs and _of_the_database(error, None) is None:
            return Broken(
                f"{self._name} left its transaction unusable, so its position was not moved. Its writes may be there: "
                f"check it ({describe(error).summary})"
            )
        if state is not None and state[:2] in ("22", "23", "P0"):  # at the commit: a deferred constraint
            return FunctionFailed(error)
        return _of_the_database(error, None) or error


def _no_transaction(guest: Guest | AsyncGuest) -> Broken:
    return Broken(f"using= opened a connection without a transaction; {guest.advice}")


def _state(error: BaseException) -> str | None:
    """The SQLSTATE, whichever library wrapped it."""
    try:
        for _ in range(4):
            for found in (error, getattr(error, "orig", None)):
                state = getattr(found, "sqlstate", None)
                if isinstance(state, str):
                    return state
            if error.__cause__ is None:
                return None
            error = error.__cause__
    except BaseException:  # noqa: BLE001 the error is the user's, and may have methods of its own
        return None
    return None


def _of_the_database(error: BaseException, conn: object) -> Exception | None:
    """Our error, if the database is unreachable or asks for another try. If the function raised one itself, it failed."""
    state = _state(error) or ""
    if state in _CONTENDED:
        return Contended(describe(error).summary)
    if state[:2] == "08" or state in ("57P01", "57P02", "57P03") or _is_lost(error, conn):
        return DatabaseUnavailable(f"the connection was lost: {describe(error).summary}")
    return None


def _is_lost(error: BaseException, conn: object) -> bool:
    try:
        if getattr(error, "connection_invalidated", False) is True:
            return True
        for of in (conn, getattr(conn, "connection", None)):
            if getattr(of, "broken", False) is True:
                return True
            is_closed = getattr(of, "is_closed", None)
            if callable(is_closed) and is_closed() is True:
                return True
    except BaseException:  # noqa: BLE001 as above
        return False
    return False
