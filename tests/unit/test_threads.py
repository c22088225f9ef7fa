"""The threads of sync handlers: nothing waits for ever, nothing waits for another call, and threads are as many as calls."""

import asyncio
import contextvars
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.conftest import await_until, within

from holdfast.runtime.threads import Threads


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads()
    yield made
    made.close()


async def all_of(threads: Threads, calls: list[Callable[[], object]]) -> list[object]:
    async with asyncio.timeout(within(30)):
        return await asyncio.gather(*(threads.run(call) for call in calls))


async def test_calls_that_wait_for_each_other_run_side_by_side(threads: Threads) -> None:
    for parties in (3, 8, 5):
        together = threading.Barrier(parties)
        assert sorted(await all_of(threads, [lambda: together.wait(25)] * parties)) == list(range(parties))  # type: ignore[type-var]  # noqa: B023


async def test_there_are_no_more_threads_than_calls(threads: Threads) -> None:
    names = {str(await threads.run(lambda: threading.current_thread().name)) for _ in range(200)}
    assert names == {"holdfast-handler-1"}

    async def one_after_the_other() -> None:
        for _ in range(200):
            await threads.run(lambda: names.add(threading.current_thread().name))

    await asyncio.gather(*(one_after_the_other() for _ in range(4)))
    assert names <= {f"holdfast-handler-{n}" for n in range(1, 5)}


async def test_a_call_has_the_context_and_the_errors_of_whoever_called(threads: Threads) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")

    async def called(value: str) -> tuple[str, str]:
        name.set(value)

        def look() -> str:
            found = name.get()
            name.set("the thread's")
            return found

        return str(await threads.run(look)), name.get()

    # Tasks of their own, so that each has a context; all calls are run by a thread or two.
    found = await asyncio.gather(*(asyncio.create_task(called(f"{n}")) for n in range(20)))
    assert found == [(f"{n}", f"{n}") for n in range(20)]
    for error in (GeneratorExit(), SystemExit(3), asyncio.CancelledError(), ValueError("x")):

        def fail(error: BaseException = error) -> None:
            raise error

        caught = None
        try:
            await threads.run(fail)
        except BaseException as raised:
            caught = raised
        assert caught is error
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.run(lambda: next(iter([])))
    assert threads.abandoned == 0


async def test_a_call_that_was_cancelled_before_it_began_does_not_begin(threads: Threads) -> None:
    began: list[str] = []
    go, running = threading.Event(), threading.Event()

    def first() -> None:
        running.set()
        go.wait(25)

    busy = asyncio.create_task(threads.run(first))
    await await_until(running.is_set, "the thread is in use")
    with pytest.MonkeyPatch.context() as no_more:
        no_more.setattr(threads, "_next", lambda: None)  # no second thread comes
        waiting = asyncio.create_task(threads.run(lambda: began.append("waiting")))
        await asyncio.sleep(0)
    busy.cancel()
    waiting.cancel()
    await asyncio.gather(busy, waiting, return_exceptions=True)
    assert threads.abandoned == 2
    go.set()
    await await_until(lambda: threads.abandoned == 0, "both are over")
    assert began == []


async def test_a_cancel_that_comes_with_the_end_leaves_no_thread_behind(threads: Threads) -> None:
    call = asyncio.create_task(threads.run(lambda: 1))
    deliver = threads._deliver

    def delivered(mailbox: object) -> None:
        deliver(mailbox)  # type: ignore[arg-type]
        call.cancel()

    with pytest.MonkeyPatch.context() as during:
        during.setattr(threads, "_deliver", delivered)
        with pytest.raises(asyncio.CancelledError):
            await call
    assert threads.abandoned == 0


def test_several_loops_share_the_threads_and_lose_no_wake_up(threads: Threads) -> None:
    """Threads give way to each other after every few instructions; some calls wait a moment, most do not."""
    before = sys.getswitchinterval()
    found: dict[int, int] = {}

    def maybe_wait(chance: random.Random) -> int:
        if chance.random() < 0.02:
            time.sleep(0.001)
        return 1

    def serve(number: int) -> None:
        chance = random.Random(number)

        async def some() -> int:
            return sum([await threads.run(lambda: maybe_wait(chance)) for _ in range(150)])

        async def main() -> int:
            async with asyncio.timeout(within(40)):
                return sum(await asyncio.gather(*(some() for _ in range(8))))

        found[number] = asyncio.run(main())

    loops = [threading.Thread(target=serve, args=(number,)) for number in range(3)]
    try:
        sys.setswitchinterval(1e-5)
        for loop in loops:
            loop.start()
        for loop in loops:
            loop.join(within(50))
    finally:
        sys.setswitchinterval(before)
    assert found == dict.fromkeys(range(3), 1200)
    assert threads.abandoned == 0
    assert threads._count <= 24


def test_a_loop_that_was_closed_takes_no_thread_with_it(threads: Threads) -> None:
    go, running = threading.Event(), threading.Event()

    def block() -> None:
        running.set()
        go.wait(25)

    async def leave() -> None:
        call = asyncio.ensure_future(threads.run(block))
        await await_until(running.is_set, "it runs")
        call.cancel()

    asyncio.run(leave())
    go.set()

    async def come() -> str:
        await await_until(lambda: len(threads._idle) == 1, "the thread has nothing to do")
        return str(await threads.run(lambda: threading.current_thread().name))

    assert asyncio.run(come()) == "holdfast-handler-1"


async def test_where_no_thread_is_to_be_had_the_caller_is_told_and_the_next_one_is_served(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as during:
        during.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await threads.run(lambda: ran.append(1))
    await all_of(threads, [lambda: ran.append(2)])
    assert ran == [2]


async def test_closing_ends_the_threads_also_the_busy_ones(threads: Threads) -> None:
    together = threading.Barrier(3)
    found = await all_of(threads, [lambda: (together.wait(25), threading.current_thread())] * 3)
    members: list[threading.Thread] = [pair[1] for pair in found]  # type: ignore[index]
    go = threading.Event()
    busy = asyncio.create_task(threads.run(lambda: go.wait(25)))
    await asyncio.sleep(0)
    threads.close()
    assert any(thread.is_alive() for thread in members)
    go.set()
    assert await busy
    await await_until(lambda: not any(thread.is_alive() for thread in members), "all have ended")
    assert threads._count == 0
