"""What the settings name by its path."""

import contextlib
from collections.abc import AsyncIterator

from holdfast import Holdfast

begun: list[Holdfast] = []


@contextlib.asynccontextmanager
async def lifespan(app: Holdfast) -> AsyncIterator[None]:
    begun.append(app)
    yield
