"""However a handler ends, its attempt is settled with an error that can be stored and read, and the worker lives."""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from holdfast import (
    AsyncTransaction,
    Backoff,
    Cancel,
    DeadLetter,
    Holdfast,
    Job,
    Retry,
    Snooze,
    Transaction,
)
from holdfast.testing import Kit

SOON = Backoff(first=3600)  # no second attempt within a test
ERROR_BYTES = 8 * 1024


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    def __repr__(self) -> str:
        raise RuntimeError("no words either")


class Surly(Exception):
    """Its __str__ raises what no `except Exception` catches."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


class Odd(BaseException):
    pass


def _raise(error: BaseException) -> Callable[[], NoReturn]:
    def raising() -> NoReturn:
        raise error

    return raising


def _chained() -> NoReturn:
    try:
        raise Unspeakable
    except Unspeakable as error:
        raise ValueError("outer\x00") from error


ENDS: dict[str, tuple[Callable[[], NoReturn], str]] = {
    "a NUL": (_raise(ValueError("be\x00fore")), "ValueError: be\ufffdfore"),
    "a lone surrogate": (_raise(ValueError("be\ud800fore")), "ValueError: be\ufffdfore"),
    "50 MB": (_raise(ValueError("x" * 50_000_000)), "ValueError: xxx"),
    "50 MB of many bytes": (_raise(ValueError("\U0001f600" * 12_500_000)), "ValueError: \U0001f600"),
    "raising __str__": (_raise(Unspeakable()), "Unspeakable: <no message: __str__ raised RuntimeError>"),
    "interrupting __str__": (_raise(Surly()), "Surly: <no message: __str__ raised KeyboardInterrupt>"),
    "a chain of both": (_chained, "ValueError: outer\ufffd"),
    "BaseException": (_raise(Odd("odd")), "Odd: odd"),
    "CancelledError": (_raise(asyncio.CancelledError("mine")), "CancelledError"),
    "SystemExit": (_raise(SystemExit(3)), "SystemExit: 3"),
    "KeyboardInterrupt": (_raise(KeyboardInterrupt()), "KeyboardInterrupt"),
    "GeneratorExit": (_raise(GeneratorExit()), "GeneratorExit"),
    "StopIteration": (_raise(StopIteration(7)), "RuntimeError: "),
    "StopAsyncIteration": (_raise(StopAsyncIteration()), ""),
    "a group of two": (
        _raise(BaseExceptionGroup("both", [Odd("a"), DeadLetter("b")])),
        "BaseExceptionGroup: both (2 sub-exceptions)",
    ),
    "a deep recursion": (lambda: _endless(0), "RecursionError"),
}


def _endless(n: int) -> NoReturn:
    _endless(n + 1)
    raise AssertionError


def _declare(app: Holdfast, kind: str, end: Callable[[], NoReturn]) -> Any:
    """A task of this kind that ends so."""
    if kind == "sync":

        @app.task(name="ends", max_attempts=1, retry=SOON)
        def sync_ends() -> None:
            end()

        return sync_ends
    if kind == "async":

        @app.task(name="ends", max_attempts=1, retry=SOON)
        async def async_ends() -> None:
            await asyncio.sleep(0)
            end()

        return async_ends
    if kind == "sync transaction":

        @app.task(name="ends", max_attempts=1, retry=SOON)
        def transaction_ends(tx: Transaction) -> None:
            tx.execute("INSERT INTO seen VALUES (1)")
            end()

        return transaction_ends

    @app.task(name="ends", max_attempts=1, retry=SOON)
    async def async_transaction_ends(tx: AsyncTransaction) -> None:
        await tx.execute("INSERT INTO seen VALUES (1)")
        end()

    return async_transaction_ends


KINDS = ["sync", "async", "sync transaction", "async transaction"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_end_is_settled_with_a_storable_error(app: Holdfast, kit: Kit, kind: str) -> None:
    kit.sql("CREATE TABLE seen (n int)")
    current: list[Callable[[], NoReturn]] = []

    def end_now() -> NoReturn:
        current[0]()

    task = _declare(app, kind, end_now)

    @app.task
    def after() -> str:
        return "alive"

    for name, (end, expected) in ENDS.items():
        current[:] = [end]
        job = task.enqueue().id
        later = after.enqueue()
        kit.run_worker(concurrency=1)
        row = kit.job(job)
        assert row["status"] == "dead_letter", (name, row)
        assert row["attempts"] == 1, name
        assert row["last_error"].startswith(expected), (name, row["last_error"][:200])
        assert len(row["last_error"]) <= ERROR_BYTES, name
        (error,) = kit.sql("SELECT message, trace FROM holdfast.errors WHERE job_id = %s", [job])
        assert len(error["message"].encode()) <= ERROR_BYTES, name
        assert "\x00" not in error["message"] + error["trace"], name
        assert later.result(timeout=25) == "alive", name
    assert kit.sql("SELECT * FROM seen") == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_alone_in_a_group_is_unwrapped(app: Holdfast, kit: Kit, kind: str) -> None:
    kit.sql("CREATE TABLE seen (n int)")
    current: list[BaseException] = []

    def end() -> NoReturn:
        raise BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [current[0]])])

    task = _declare(app, kind, end)

    def run(signal: BaseException) -> dict[str, Any]:
        current[:] = [signal]
        job = task.using(max_attempts=5).enqueue().id
        kit.run_worker()
        return kit.job(job)

    buried = run(DeadLetter("enough\x00"))
    assert (buried["status"], buried["last_error"]) == ("dead_letter", "DeadLetter: enough\ufffd")
    again = run(Retry("later\ud800", after=3600))
    assert (again["status"], again["attempts"], again["last_error"]) == ("scheduled", 1, "Retry: later\ufffd")
    asleep = run(Snooze(3600))
    assert (asleep["status"], asleep["attempts"]) == ("scheduled", 0)
    cancelled = run(Cancel("never mind"))
    assert (cancelled["status"], cancelled["last_error"]) == ("cancelled", "never mind")
    assert kit.sql("SELECT * FROM seen") == []


def test_signals_with_nonsense_in_them_fail_the_attempt_and_nothing_else(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=1)
    def nonsense(which: int) -> None:
        raise [Snooze("soon"), Retry(after=-5), Retry(None), DeadLetter(7)][which]  # type: ignore[arg-type]

    jobs = [nonsense.enqueue(which).id for which in range(4)]
    kit.run_worker()
    for job in jobs:
        row = kit.job(job)
        assert row["status"] == "dead_letter", row
        assert row["last_error"]


def test_a_handler_may_swallow_its_cancellation_and_still_complete(app: Holdfast, kit: Kit) -> None:
    @app.task
    async def stubborn(job: Job) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            task.uncancel()
        return "done"

    handle = stubborn.enqueue()
    kit.run_worker()
    assert handle.result(timeout=25) == "done"


def test_a_traceback_begins_in_the_handler(app: Holdfast, kit: Kit) -> None:
    def deeper() -> None:
        raise KeyError("deep")

    @app.task(max_attempts=1)
    def sync() -> None:
        deeper()

    @app.task(max_attempts=1)
    async def awaited() -> None:
        deeper()

    for task in (sync, awaited):
        task.enqueue()
    kit.run_worker()
    for row in kit.sql("SELECT trace FROM holdfast.errors"):
        head, first, *rest = row["trace"].splitlines()
        assert head == "Traceback (most recent call last):"
        assert __file__ in first
        assert rest[-1] == "KeyError: 'deep'"
        assert "in deeper" in row["trace"]
        assert "holdfast/runtime" not in row["trace"]
