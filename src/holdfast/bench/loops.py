"""The event loop of the worker processes: one place decides."""

import asyncio
import importlib
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed; None: asyncio's own."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory


def loop_name() -> str:
    return "asyncio" if loop_factory() is None else "uvloop"
