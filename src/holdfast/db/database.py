"""One database, as the rest of the program sees it: run a statement, on our own connections or on the user's."""

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import psycopg

from .. import failpoints
from ..errors import LeaseLost
from ..model.address import libpq_address
from ..model.clock import Clock
from ..settings import Settings
from ..store.statement import Flow, Last, Statement
from . import embedded, migrate
from .connect import LIMIT
from .copy import acopy_in, copy_in
from .executors import adrive, arun, drive, run
from .faults import Contended, translate
from .migrate.address import parts_of
from .pools import Pools
from .reachability import Calls, Reachability
from .session import Session
from .transaction import AsyncTransaction, Transaction
from .transaction_end import AsyncBlock, Block

T = TypeVar("T")
What = Callable[[], Statement[T] | Flow[T]]  # a fresh one for every try
_PAUSES = (0.005, 0.02, 0.08, 0.3, None)


def resolve_dsn(url: str) -> str:
    """A libpq connection string. An `embedded:` url starts the embedded server and migrates it."""
    if not url.startswith("embedded:"):
        parts_of(url)  # a pool would try for seconds, and quote pieces of the address
        return libpq_address(url)
    server = embedded.shared(embedded.parse_embedded_url(url))
    server.ensure_database()
    dsn = server.dsn()
    migrate.up(dsn)
    return dsn


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        known = translate(error)
        if known is None:
            raise
        raise known from error


def _path(what: Statement[Any] | Flow[Any]) -> bool | None:
    """Which search_path it needs: ours, or the one that the connection had last."""
    return None if isinstance(what, Statement) and what.runs_anywhere else False


class _NoSilentRollback:
    """The driver swallows its Rollback at the end of the transaction block; an attempt must not end silently."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, psycopg.Rollback):
            raise RuntimeError(  # noqa: TRY004 nothing has a wrong type
                "the handler raised psycopg.Rollback, so nothing of it stays. "
                "Say what happens to the job: raise Retry, Snooze, Cancel or DeadLetter"
            ) from error


_no_silent_rollback = _NoSilentRollback()


class Lender(Protocol):
    """Lends the connection of a thread for a handler's Transaction. A lost connection raises the driver's error."""

    def connection(self) -> AbstractContextManager[psycopg.Connection[Any]]: ...

    def transaction(self) -> AbstractContextManager[object]: ...


class Database:
    def __init__(self, url: str, settings: Settings, clock: Clock | None = None) -> None:
        self.url = url
        self.settings = settings
        self.clock = clock or Clock()
        self.reach = Reachability()
        # Jobs of these queues were committed on one of our own connections, and are due; None: unknown queues.
        self.enqueued = Calls[[Collection[str] | None]]()
        self.lender: Lender | None = None  # whose connections transact() runs on, if they are not our own
        self.keeps_idle = True  # unused connections; otherwise the database can be dropped at any time
        self.longest: float | None = (
            None  # seconds of one statement on our pools; None: as long as the role may
        )
        self._lock = threading.Lock()
        self._resolved: tuple[int, str, Pools] | None = None
        self._inherited: list[Pools] = []
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    @property
    def is_embedded(self) -> bool:
        return self.url.startswith("embedded:")

    def _ready(self) -> tuple[str, Pools]:
        """Resolve at first use, and again in a forked child: nothing of a parent is shared."""
        found = self._resolved
        if found is not None and found[0] == os.getpid():
            return found[1], found[2]
        with self._lock:
            if self._resolved is None or self._resolved[0] != os.getpid():
                if self._resolved is not None:
                    self._inherited.append(self._resolved[2])  # not ours to close, so never to be collected
                dsn = resolve_dsn(self.url)
                self._resolved = (
                    os.getpid(),
                    dsn,
                    Pools(dsn, self.settings, self.clock, keeps=self.keeps_idle, longest=self.longest),
                )
            return self._resolved[1], self._resolved[2]

    @property
    def dsn(self) -> str:
        return self._ready()[0]

    @property
    def connections(self) -> int:
        """Open connections of this process: of the pools, and of loops."""
        with self._lock:
            pools = self._resolved[2] if self._resolved is not None else None
            sessions = list(self._sessions)
        return (pools.open if pools is not None else 0) + sum(session.is_open for session in sessions)

    async def reserve(self, handlers: int) -> None:
        """Let the pools grow to one connection per handler."""
        await (await self._aready()).reserve(handlers)

    def session(self, name: str, patience: float | None = None, *, keep_plans: bool = False) -> Session:
        """One connection for a loop; with `patience`, it gives up on a silent server after that many seconds.
        `keep_plans`: its statements name the table of one queue, and need not be planned each time."""
        settings = self.settings
        if patience is not None:
            limit = max(2.0, patience)
            settings = replace(settings, statement_timeout=limit, connect_timeout=limit)
        made = Session(self.dsn, settings, self.clock, name, keep_plans=keep_plans, reach=self.reach)
        with self._lock:
            self._sessions.add(made)
        return made

    def run(self, make: What[T]) -> T:
        """Run it on one of our own connections: a statement by itself, a flow in one transaction."""
        for pause in _PAUSES:
            try:
                return self._run(self._ready()[1], make())
            except Contended:
                if pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError

    def _run(self, pools: Pools, what: Statement[T] | Flow[T]) -> T:
        lent = _path(what)
        try:
            pool, conn = pools.take(lent)
            try:
                if isinstance(what, Statement) and (lent is None or not conn.is_pooled):
                    return run(conn, what)
                with pools.transaction(conn):
                    return drive(conn, what)
            finally:
                pools.give_back(pool, conn, lent)
        except psycopg.Error as error:
            known = translate(error)
            if known is None:
                raise
            raise known from error

    async def arun(self, make: What[T]) -> T:
        pools = await self._aready()
        for pause in _PAUSES:
            try:
                what = make()
                with _translated():
                    async with pools.aconnection(lent=_path(what)) as conn:
                        if isinstance(what, Statement) and (not conn.is_pooled or what.runs_anywhere):
                            return await arun(conn, what)
                        async with pools.atransaction(conn):
                            return await adrive(conn, what)
            except Contended:
                if pause is None:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError

    def load(
        self,
        text: str,
        before: Statement[T],
        pieces: Callable[[T], Iterable[bytes]],
        after: Callable[[], Iterable[Statement[Any]]],
    ) -> None:
        """COPY rows in one transaction, on one of our own connections. Tried once: they are made while they are sent."""
        pools = self._ready()[1]
        with _translated(), pools.connection() as conn, pools.transaction(conn):
            copy_in(conn, text, before, pieces, after)

    async def aload(
        self,
        text: str,
        before: Statement[T],
        pieces: Callable[[T], Iterable[bytes]],
        after: Callable[[], Iterable[Statement[Any]]],
    ) -> None:
        pools = await self._aready()
        with _translated():
            async with pools.aconnection() as conn, pools.atransaction(conn):
                await acopy_in(conn, text, before, pieces, after)

    async def _aready(self) -> Pools:
        if self._resolved is None or self._resolved[0] != os.getpid():
            await asyncio.to_thread(self._ready)  # an embedded server takes a second to start
        return self._ready()[1]

    def transact(
        self,
        body: Callable[[Transaction], T],
        finish: Callable[[T], Flow[bool] | Last],
        limit: float | None = None,
        first: Callable[[], Flow[bool]] | None = None,
    ) -> T:
        """Run `body` in a transaction, then `finish` in the same one, then commit. `first` comes before the body. If it or
        `finish` returns False, nothing of it stays: LeaseLost.

        `limit` seconds end a statement, or an idle transaction, of an attempt that is over.

        Errors of the body go out as they are, unless the connection broke. An error while finishing is translated, so
        that a handler's own database error is never taken for an outage, nor the other way round.
        """
        finishing = False
        lender, pools = self.lender, self._ready()[1]
        with lender.connection() if lender else pools.connection(lent=True) as conn:
            try:
                with lender.transaction() if lender else Block(conn) as block:
                    if limit is not None:
                        conn.execute(LIMIT, [max(1, round(limit * 1000))])
                    if first is not None and not drive(conn, first()):
                        raise LeaseLost
                    with _no_silent_rollback:
                        value = body(Transaction(conn))
                    finishing = True
                    end = finish(value)
                    message = pools.ending(conn, end) if isinstance(end, Last) else None
                    if message is None:
                        if not drive(conn, end.otherwise() if isinstance(end, Last) else end):
                            raise LeaseLost
                        message = pools.ending(conn, None)
                    failpoints.point("transaction.commit")
                    if isinstance(block, Block) and message is not None:
                        block.end(message)
            except psycopg.Error as error:
                raise (translate(error) if finishing or conn.broken else None) or error from error
            return value

    async def atransact(
        self,
        body: Callable[[AsyncTransaction], Awaitable[T]],
        finish: Callable[[T], Flow[bool] | Last],
        limit: float | None = None,
        first: Callable[[], Flow[bool]] | None = None,
    ) -> T:
        finishing = False
        pools = await self._aready()
        pool, conn = await pools.atake(lent=True)
        try:
            async with AsyncBlock(conn) as block:
                if limit is not None:
                    await conn.execute(LIMIT, [max(1, round(limit * 1000))])
                if first is not None and not await adrive(conn, first()):
                    raise LeaseLost
                with _no_silent_rollback:
                    value = await body(AsyncTransaction(conn))
                finishing = True
                end = finish(value)
                message = pools.ending(conn, end) if isinstance(end, Last) else None
                if message is None:
                    if not await adrive(conn, end.otherwise() if isinstance(end, Last) else end):
                        raise LeaseLost
                    message = pools.ending(conn, None)
                failpoints.point("transaction.commit")
                if message is not None:
                    await block.end(message)
        except psycopg.Error as error:
            raise (translate(error) if finishing or conn.broken else None) or error from error
        finally:
            await pools.agive_back(pool, conn, lent=True)
        return value

    def close(self) -> None:
        if self._resolved is not None and self._resolved[0] == os.getpid():
            self._resolved[2].close()

    async def aclose(self) -> None:
        if self._resolved is not None and self._resolved[0] == os.getpid():
            await self._resolved[2].aclose()
