"""Code of others is awaited in a task of its own, and with a limit.

A client of a broker swallows a cancellation now and then: it takes it for its own, or makes another error of it. Whoever
awaits such code directly may miss its own end. A task that awaits it from outside does not.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

_LETTING_GO = 1.0  # seconds that cancelled code has to end

T = TypeVar("T")


async def bounded(work: Awaitable[T], seconds: float, what: str) -> T:
    """Its result. TimeoutError after that many seconds, whatever the code does then; a cancellation that nobody asked for is
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
    """So that no error of it is reported as one that nobody has seen."""
    if not task.cancelled():
        task.exception()
