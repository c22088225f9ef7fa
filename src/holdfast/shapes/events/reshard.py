"""The number of shards of a projection changes at a barrier: every shard runs up to it, and then its rows are replaced.

A worker that starts reports how many shards its code wants, and the worker that started last decides. Code that wants
another number runs the existing ones. So old and new code side by side change the number once per start only.
"""

import asyncio
from collections.abc import Sequence

from ... import failpoints, telemetry
from ...db.database import Database
from . import store
from .store import Owned

_PAUSE = 0.02


async def begin_reshards(database: Database, names: Sequence[str]) -> None:
    """Set the barrier of each; waits for batches at work."""
    for name in names:
        barrier = await _begin(database, name)
        if barrier is not None:
            telemetry.emit("projection.barrier", subscription=name, position=barrier)


async def _begin(database: Database, name: str) -> int | None:
    return await database.arun(lambda: store.begin_reshard(name))


async def at_barrier(database: Database, owned: Owned) -> bool:
    """This shard has reached the barrier. True: all have, and the rows were replaced."""
    failpoints.point("reshard.barrier")
    if await database.arun(lambda: store.finish_reshard(owned.name)):
        telemetry.emit("projection.resharded", subscription=owned.name, position=owned.position)
        return True
    await asyncio.sleep(_PAUSE)
    return False
