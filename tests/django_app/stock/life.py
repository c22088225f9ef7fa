"""What the settings name by its path."""

import atexit
import contextlib
import os
from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async

from holdfast import Holdfast

begun: list[Holdfast] = []
if os.environ.get("STOCK_TELLS"):
    atexit.register(print, "the process ended in its usual way")


@contextlib.asynccontextmanager
async def lifespan(app: Holdfast) -> AsyncIterator[None]:
    begun.append(app)
    await sync_to_async(len)("")  # in asgiref's thread for all, which waits for more
    yield
