"""The end of a handler's transaction: its last statement, the COMMIT and the reset of its connection in one message.

Two round trips less for every handler with a transaction. An error after the COMMIT does not affect the transaction: its
connection is closed, and that is all. If the connection is lost before the whole reply has come, the commit is in doubt,
as it always is.

Statements that are prepared here by name stay prepared, with their plans, for the life of our connection.
"""

import asyncio
import re
from typing import Any, NamedTuple, TypeGuard

import psycopg
from psycopg import errors, generators
from psycopg.abc import PQGen
from psycopg.pq import ConnStatus, Escaping, ExecStatus, PipelineStatus, TransactionStatus

from ..errors import LeaseLost
from ..store.statement import REFUSED, Last
from .connect import AnyConnection
from .faults import Contended
from .readiness import Readiness

_UNKNOWN, _TWICE = "26000", "42P05"  # no such prepared statement; it is there already
_LEFT = "holdfast_left"
_NO_QUOTES = re.compile(r"[A-Za-z0-9_.:-]*")  # ids, names and a result of null
_PASSED = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


class _Own:
    """What is known about one of our connections."""

    is_reset = False  # read with the commit of its last user
    is_pooled = False  # a pooler shares it with other clients
    is_theirs: bool | None = False  # it has the role's search_path, not ours; None: unknown
    offset: float | None = None  # of the clock, as it has it
    used_at = 0.0  # when it came back
    before: list[str] | None = None  # its settings when it was new
    settings = ""  # the commands that set ours again


class OwnConnection(_Own, psycopg.Connection[Any]):
    """`kept`: the statements prepared on it by name. The driver drops all prepared statements at a rollback."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: set[str] = set()

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        if name is None:
            self.kept.clear()
        return super()._deallocate(name)


class _Interrupted:
    """A generator of the driver's that was interrupted while it waited."""

    def __init__(self, work: Any, error: BaseException) -> None:
        self._work = work
        self._error: BaseException | None = error

    def __next__(self) -> Any:
        if self._error is None:
            return next(self._work)
        error, self._error = self._error, None
        raise error

    def send(self, ready: int) -> Any:
        return self._work.send(ready)


class OwnAsyncConnection(_Own, psycopg.AsyncConnection[Any]):
    """While it is lent it keeps its place in the event loop between statements: to register and leave each time, with a
    timer beside it, takes longer than to send a statement."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: set[str] = set()
        self._ear: Readiness | None = None

    def listen(self) -> None:
        """Until deafen(), which must come before its socket is closed."""
        self._ear = Readiness(self.pgconn.socket)

    def deafen(self) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()

    async def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        ear = self._ear
        if ear is None or args or kwargs:
            if ear is not None:
                ear.close()  # the driver registers itself, and leaves none
            return await super().wait(gen, *args, **kwargs)
        try:
            return await ear.hear(gen)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit) as error:
            self.deafen()
            interrupted: Any = _Interrupted(gen, error)
            return await super().wait(interrupted)  # which asks the server to cancel it
        finally:
            if self.pgconn.status != ConnStatus.OK:  # and its socket may be closed
                self.deafen()

    async def close(self) -> None:
        self.deafen()
        await super().close()

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        if name is None:
            self.kept.clear()
        return super()._deallocate(name)


Own = OwnConnection | OwnAsyncConnection


class Message(NamedTuple):
    text: bytes
    commit: int  # the place of the COMMIT in what comes back
    last: str | None = None


def can_end(conn: AnyConnection) -> TypeGuard[Own]:
    """Whether its transaction is as it was when the handler got it: open, not failed, with no block of the driver open in it
    and no pipeline."""
    return (
        isinstance(conn, Own)
        and conn.pgconn.transaction_status == TransactionStatus.INTRANS
        and conn.pgconn.pipeline_status == PipelineStatus.OFF
        and getattr(conn, "_num_transactions", None) == 1
    )


def message(conn: Own, last: Last | None, left: str, reset: str, *, scans: bool) -> Message | None:
    """`left`: a query that the reset begins with. `scans`: the role's plans may scan whole tables; that of `last`, which is
    kept, is made without. None: its values cannot be written as text here."""
    parts: list[bytes] = []
    if last is not None:
        if conn.pgconn.parameter_status(b"client_encoding") != b"UTF8" or "\0" in "".join(
            map(str, last.values)
        ):
            return None
        if last.name not in conn.kept:
            parts.append(f"PREPARE {last.name} AS {last.text}".encode())
        values = b", ".join(_literal(conn, value) for value in last.values)
        execute = b"EXECUTE %s (%s)" % (last.name.encode(), values)
        limits = (b"SET LOCAL enable_seqscan = off", b"SET LOCAL enable_seqscan = on")
        parts += (limits[0], execute, limits[1]) if scans else (execute,)
    commit = len(parts)
    parts.append(b"COMMIT")
    if _LEFT not in conn.kept:
        parts.append(f"PREPARE {_LEFT} AS {left}".encode())
    parts += (f"EXECUTE {_LEFT}".encode(), reset.encode())
    return Message(b"; ".join(parts), commit, None if last is None else last.name)


def _literal(conn: Own, value: str | int | bool | None) -> bytes:
    if value is None:
        return b"NULL"
    if isinstance(value, str):
        if _NO_QUOTES.fullmatch(value):
            return b"'%s'" % value.encode()
        return bytes(Escaping(conn.pgconn).escape_literal(value.encode()))
    return str(value).lower().encode()


def _sent(conn: Own, what: Message) -> PQGen[bool]:
    """Whether it was reset too; it is committed then in any case. Raises what prevented the commit."""
    before = frozenset(conn.kept)
    conn.kept |= {_LEFT, what.last or _LEFT}  # also if nobody waits for the end of it
    conn.pgconn.send_query(what.text)
    results = yield from generators.execute(conn.pgconn)
    if len(results) > what.commit and results[what.commit].command_status == b"COMMIT":
        return results[-1].status in _PASSED
    conn.kept -= {_LEFT} - before  # it has not come so far
    error = errors.error_from_result(results[-1], conn.info.encoding)
    if what.last is not None and error.sqlstate in (_UNKNOWN, _TWICE):
        if error.sqlstate == _UNKNOWN:
            conn.kept.discard(what.last)
        raise Contended(f"the handler changed what is prepared on its connection: {error}") from error
    if REFUSED in str(error):
        raise LeaseLost from error
    raise error


def _ended(conn: Own) -> bool:
    """Whether no transaction is open any more. Then the driver's block is over too."""
    if conn.pgconn.transaction_status != TransactionStatus.IDLE:
        return False
    conn._num_transactions -= 1
    return True


class Block:
    """A transaction block of the driver, which `end()` may end before it is left."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._block = psycopg.Transaction(conn)
        self._is_over = False

    def __enter__(self) -> "Block":
        self._block.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        if not self._is_over:
            self._block.__exit__(*details)

    def end(self, what: Message) -> None:
        conn = self._conn
        assert isinstance(conn, OwnConnection)
        try:
            with conn.lock:
                conn.is_reset = conn.wait(_sent(conn, what))
        finally:
            self._is_over = _ended(conn)
        if not conn.is_reset:
            conn.close()


class AsyncBlock:
    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._conn = conn
        self._block = psycopg.AsyncTransaction(conn)
        self._is_over = False

    async def __aenter__(self) -> "AsyncBlock":
        await self._block.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        if not self._is_over:
            await self._block.__aexit__(*details)

    async def end(self, what: Message) -> None:
        conn = self._conn
        assert isinstance(conn, OwnAsyncConnection)
        try:
            async with conn.lock:
                conn.is_reset = await conn.wait(_sent(conn, what))
        finally:
            self._is_over = _ended(conn)
        if not conn.is_reset:
            await conn.close()
