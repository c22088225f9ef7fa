"""A stop is heard within bounded time, whatever the code that is called makes of a cancellation."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.conftest import await_until, within

from holdfast.runtime import service as services
from holdfast.runtime.bounded import bounded
from holdfast.runtime.service import Service
from holdfast.telemetry import Event

Body = Callable[[], Awaitable[None]]


class Deaf:
    """Waits, and takes a cancellation for something else."""

    def __init__(self, swallows: int, error: type[Exception] | None = None) -> None:
        self.left = swallows
        self.error = error
        self.begun = asyncio.Event()

    async def __call__(self) -> None:
        self.begun.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self.left == 0:
                    raise
                self.left -= 1
                if self.error is not None:
                    raise self.error("the connection is closed") from None


class Ticking(Service):
    name = "ticking"

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.ticks = 0
        self.finished = False

    async def tick(self) -> float:
        self.ticks += 1
        await self.body()
        return 3600.0

    async def finish(self) -> None:
        self.finished = True


async def stopped(service: Service) -> None:
    async with asyncio.timeout(within(10)):
        await service.stop()


async def test_a_tick_that_makes_an_error_of_the_stop_is_the_last_one() -> None:
    body = Deaf(1, ConnectionError)
    service = Ticking(body)
    service.start()
    await body.begun.wait()
    await stopped(service)
    assert (service.ticks, service.finished) == (1, True)


async def test_a_tick_that_swallows_the_stop_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_CANCELLED_EACH", 0.05)
    body = Deaf(2)
    service = Ticking(body)
    service.start()
    await body.begun.wait()
    await stopped(service)
    assert (service.ticks, service.finished, body.left) == (1, True, 0)


async def test_a_tick_that_never_ends_is_left_behind_and_named(
    monkeypatch: pytest.MonkeyPatch, events: list[Event]
) -> None:
    monkeypatch.setattr(services, "_CANCELLED_EACH", 0.05)
    body = Deaf(3)
    service = Ticking(body)
    service.start()
    task = service._task
    assert task is not None
    await body.begun.wait()
    await stopped(service)
    assert [e.fields["service"] for e in events if e.name == "service.stuck"] == ["ticking"]
    assert not service.finished, "it would wait for what the tick holds"
    task.cancel()
    await asyncio.wait({task})


async def test_a_cancellation_of_somebody_elses_does_not_end_a_service(events: list[Event]) -> None:
    async def cancelled() -> None:
        if service.ticks == 1:
            raise asyncio.CancelledError

    service = Ticking(cancelled)
    service.start()
    await await_until(lambda: service.ticks == 2, "it ticks on")
    await stopped(service)
    assert [e.fields["error"] for e in events if e.name == "service.failed"] == ["CancelledError: "]


async def test_a_service_that_was_stopped_can_be_started_again() -> None:
    service = Ticking(Deaf(1, ConnectionError))
    service.start()
    await await_until(lambda: service.ticks == 1, "it ticks")
    await stopped(service)
    service.start()
    await await_until(lambda: service.ticks == 2, "it ticks again")
    await stopped(service)


async def test_deaf_code_is_left_after_its_limit() -> None:
    body = Deaf(1)
    with pytest.raises(TimeoutError, match=r"^receive\(\) did not end within 0.05 s$"):
        async with asyncio.timeout(within(10)):
            await bounded(body(), 0.05, "receive()")
    assert body.left == 0


@pytest.mark.parametrize("error", [None, ConnectionError])
async def test_whoever_awaits_deaf_code_is_heard(error: type[Exception] | None) -> None:
    body = Deaf(1, error)
    task = asyncio.ensure_future(bounded(body(), 3600.0, "receive()"))
    await body.begun.wait()
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=within(10))
    assert done
    assert task.cancelled()


async def test_a_cancellation_from_within_is_an_error() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ConnectionError, match=r"^open\(\) was cancelled by the code that it called$"):
        await bounded(cancelled(), 1.0, "open()")


async def test_results_and_errors_pass_through() -> None:
    async def seven() -> int:
        return 7

    async def wrong() -> int:
        raise LookupError("no such stream")

    assert await bounded(seven(), 1.0, "open()") == 7
    with pytest.raises(LookupError, match="no such stream"):
        await bounded(wrong(), 1.0, "open()")
