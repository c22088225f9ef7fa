"""Handlers that are cancelled at a bad moment cost the pool nothing."""

import asyncio
from typing import Any

import pytest
from tests.crash.process import Scene

from holdfast.db import pools as module
from holdfast.db.pools import Pools


async def test_a_handler_cancelled_while_its_connection_is_reset_leaks_no_connection(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = scene.kit.database
    pools = Pools(database.dsn, database.settings, database.clock)
    monkeypatch.setattr(module, "RESET", "SELECT pg_sleep(0.3)")
    leaving = asyncio.Event()

    async def handler() -> None:
        async with pools.aconnection(lent=True):
            leaving.set()

    try:
        for _ in range(database.settings.pool_size):
            leaving.clear()
            task = asyncio.create_task(handler())
            await leaving.wait()
            await asyncio.sleep(0.02)  # it is inside the reset now
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        monkeypatch.undo()
        lent: list[Any] = []
        async with asyncio.timeout(5):
            for _ in range(database.settings.pool_size):
                context = pools.aconnection()
                lent.append(context)
                await context.__aenter__()
        for context in lent:
            await context.__aexit__(None, None, None)
    finally:
        await pools.aclose()
