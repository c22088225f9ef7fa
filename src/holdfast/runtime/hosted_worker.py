"""A worker beside something else in one event loop, such as a web server: it runs as long as the block, then drains."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from .. import telemetry
from .worker import Worker

Serve = Callable[[Callable[[Worker], None]], Coroutine[Any, Any, None]]  # calls back when the worker is made


@contextlib.asynccontextmanager
async def hosted(serve: Serve) -> AsyncIterator[None]:
    """Entered once the server was checked and the worker is made: what is wrong with either is raised here. At the end it
    drains. A worker that fails while the block runs is logged at once, and its error is raised at the end."""
    made: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(made.set_result), name="holdfast worker")
    try:
        either: set[asyncio.Future[Any]] = {made, serving}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if made.done():
            serving.add_done_callback(_say_failure)
            yield
    finally:
        if made.done():
            made.result().stop()
        else:
            made.cancel()
            serving.cancel()
        await _ended(serving)


async def _ended(serving: asyncio.Task[None]) -> None:
    """Wait for its end. If the waiting task is cancelled while the worker drains, the worker hurries."""
    try:
        await serving
    except asyncio.CancelledError:
        if (current := asyncio.current_task()) is not None and current.cancelling():
            raise


def _say_failure(serving: asyncio.Task[None]) -> None:
    if not serving.cancelled() and (error := serving.exception()) is not None:
        telemetry.emit(
            "worker.failed",
            level=logging.ERROR,
            error=f"{type(error).__name__}: {error}",
            advice="no job runs in this process any more: restart it",
        )
