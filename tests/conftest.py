"""Fixtures of our own tests, on top of the test kit that users get."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import psycopg
import pytest
from tests.claims import SkippedClaims

from holdfast import Holdfast, failpoints, telemetry
from holdfast.db.database import Database
from holdfast.settings import Settings
from holdfast.testing import Kit, TestServer

T = TypeVar("T")

QUICK = Settings(
    lease=1.0, heartbeat=0.2, dead_after=0.8, sweep=0.1, poll=0.05, drain=5.0, statement_timeout=10.0
)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # one place sees every report, also in a parallel run
        config.pluginmanager.register(SkippedClaims())


@pytest.fixture
def app() -> Holdfast:
    """An app whose url is set by the kit."""
    return Holdfast("postgresql://unused.invalid/none")


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    """The app on a fresh database, with timings for tests."""
    return holdfast_kit(app, QUICK)


@pytest.fixture
async def akit(kit: Kit) -> AsyncIterator[Kit]:
    """The kit for async tests: closes what the test's loop opened."""
    yield kit
    await kit.database.aclose()


@pytest.fixture
def dsn(holdfast_url: str) -> str:
    return holdfast_url


@pytest.fixture
def database(kit: Kit) -> Database:
    return kit.database


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def events() -> Iterator[list[telemetry.Event]]:
    """Every telemetry event of the test so far."""
    seen: list[telemetry.Event] = []
    stop = telemetry.subscribe(seen.append)
    yield seen
    stop()


def wait_until(condition: Callable[[], T], what: str, seconds: float = 20.0) -> T:
    """Wait for a condition, not for a time; fails with `what` after the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s: {what}")


async def await_until(condition: Callable[[], T | Awaitable[T]], what: str, seconds: float = 20.0) -> T:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value: Any = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value  # type: ignore[no-any-return]
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s: {what}")


@contextlib.contextmanager
def raw(url: str, **options: Any) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, **options) as conn:
        yield conn


__all__ = ["QUICK", "TestServer", "await_until", "raw", "wait_until"]
