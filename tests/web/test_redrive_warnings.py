"""What the preview of a redrive says against it."""

import asyncio

from tests.web.conftest import Shop
from tests.web.surfing import Surfer

from holdfast.model.queue import QueueRules
from holdfast.operate.operator import Operator
from holdfast.testing import Kit

NOT_FIXED = "No worker has started since they died."
WORKER = """
INSERT INTO holdfast.workers (id, host, pid, status, last_seen_at, started_at, queues, tasks, concurrency, release)
VALUES (%s, 'web-1', 1, 'alive', holdfast.now(), holdfast.now() - %s * interval '1 second', '{inbox}', '{}', 1, '')
"""


async def test_a_redrive_asks_whether_the_cause_is_gone(mara: Surfer, kit: Kit, shop: Shop) -> None:
    path = f"/acts/dead-redrive?ids={shop.dead}"
    assert NOT_FIXED not in await mara.page(path), "no worker is alive: that is said elsewhere"
    await asyncio.to_thread(kit.sql, WORKER, ["web-1:1:old", 3600])
    assert NOT_FIXED in await mara.page(path)
    await asyncio.to_thread(kit.sql, WORKER, ["web-1:1:new", 0])
    assert NOT_FIXED not in await mara.page(path)


async def test_a_redrive_says_that_jobs_lose_their_place(mara: Surfer, kit: Kit, shop: Shop) -> None:
    said = "Queue letters is ordered: they run after what their keys have waiting by now."
    assert said not in await mara.page(f"/acts/dead-redrive?ids={shop.dead}")
    await asyncio.to_thread(
        lambda: Operator(kit.database, "t").create_queue(
            "letters", rules=QueueRules(ordering="key", on_dead_letter="skip")
        )
    )
    await asyncio.to_thread(
        kit.sql, "UPDATE holdfast.dead_letters SET queue = 'letters' WHERE id = %s", [shop.dead]
    )
    assert said in await mara.page(f"/acts/dead-redrive?ids={shop.dead}")
