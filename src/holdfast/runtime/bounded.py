"""Foreign code is awaited in a separate task, with a time limit.

Clients of brokers sometimes swallow a cancellation: they take it for their own, or turn it into another error. Code that
awaits such a client directly may then miss its own cancellation. A task that awaits it from outside does not.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

_LETTING_GO = 1.0  # seconds that cancelled code has to end

T = TypeVar("T")


async def bounded(work: Awaitable[T], seconds: float, what: str) -> T:
    """Its result. TimeoutError after that many seconds, whatever the code does then; an unexpected cancellation becomes
    a ConnectionError."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_looked_at)
    try:
        ended, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_LETTING_GO)
    if not ended:
        raise TimeoutError(f"{what} did not end within {seconds:g} s")
    if task.cancelled():
        raise ConnectionError(f"{what} was cancelled by the code that it called")
    return task.result()


def _looked_at(task: "asyncio.Future[Any]") -> None:
    """Retrieve its error, so that asyncio does not report it as never retrieved."""
    if not task.cancelled():
        task.exception()
