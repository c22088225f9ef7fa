"""Fixtures of our own tests, on top of the test kit that users get."""

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import hypothesis
import psycopg
import pytest
from tests.claims import SkippedClaims
from tests.command_tree import keep_tree
from tests.failed import wanted_names
from tests.spent import Spent

from holdfast import Holdfast, failpoints, telemetry
from holdfast.db.database import Database
from holdfast.settings import Settings
from holdfast.shapes.events import contract
from holdfast.testing import Kit, TestServer

T = TypeVar("T")

QUICK = Settings(
    lease=1.0, heartbeat=0.2, dead_after=0.8, sweep=0.1, poll=0.05, drain=5.0, statement_timeout=10.0
)
# Limits are written for a quiet machine, and hold on one that is so many times slower. They only matter where a test fails.
PATIENCE = float(os.environ.get("HOLDFAST_TEST_PATIENCE", "5"))
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if not is_worker:  # one place sees every report, also in a parallel run
        config.pluginmanager.register(SkippedClaims())
        config.pluginmanager.register(Spent())
        if (names := wanted_names()) is not None:
            config.pluginmanager.register(names)
    if is_worker or not config.getoption(
        "numprocesses", None
    ):  # whoever runs tests, not whoever hands them out
        set_dispositions()
        keep_tree()
    gc.disable()  # until all tests are collected: what is made up to then stays


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def set_dispositions() -> None:
    """What a test starts has the usual signals, also when we were started with nohup or in the background of a script. An
    ignored signal stays ignored in every program that is started, a handled one does not: so a handler does nothing."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def within(seconds: float) -> float:
    """The limit that holds on a slower machine."""
    return seconds * PATIENCE


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


@pytest.fixture(autouse=True)
def _own_event_types(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test knows the event classes of its own module, whatever others are collected with it."""
    own = {
        place: [kind for kind in kinds if kind.cls.__module__ == request.module.__name__]
        for place, kinds in contract.DECLARED.items()
    }
    monkeypatch.setattr(contract, "DECLARED", {place: kinds for place, kinds in own.items() if kinds})


@pytest.fixture
def events() -> Iterator[list[telemetry.Event]]:
    """Every telemetry event of the test so far."""
    seen: list[telemetry.Event] = []
    stop = telemetry.subscribe(seen.append)
    yield seen
    stop()


def _pause(waited: float) -> float:
    """Until the next look. Each takes some of the core that is waited for: who has waited long looks less often."""
    return min(max(waited / 10, 0.02), 0.05)


def wait_until(condition: Callable[[], T], what: str, seconds: float = 20.0) -> T:
    """Wait for a condition, not for a time; fails with `what` after the deadline."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < within(seconds):
        if value := condition():
            return value
        time.sleep(_pause(waited))
    raise AssertionError(f"not within {within(seconds):g} s: {what}")


async def await_until(condition: Callable[[], T | Awaitable[T]], what: str, seconds: float = 20.0) -> T:
    began = time.monotonic()
    while (waited := time.monotonic() - began) < within(seconds):
        value: Any = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value  # type: ignore[no-any-return]
        await asyncio.sleep(_pause(waited))
    raise AssertionError(f"not within {within(seconds):g} s: {what}")


@contextlib.contextmanager
def raw(url: str, **options: Any) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, **options) as conn:
        yield conn


__all__ = ["QUICK", "TestServer", "await_until", "raw", "wait_until", "within"]
