"""The thin thread: enqueue, run, result."""

import pytest

from holdfast import Holdfast
from holdfast.testing import Kit

pytestmark = pytest.mark.versions


def test_a_job_is_enqueued_run_and_its_result_read(app: Holdfast, kit: Kit) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    handle = add.enqueue(1, b=2)
    kit.assert_enqueued(add, a=1, b=2)
    kit.run_worker()
    assert handle.result(timeout=25) == 3


async def test_the_same_from_async_code(app: Holdfast, akit: Kit) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    handle = await add.aenqueue(1, b=2)
    await akit.arun_worker()
    assert await handle.aresult(timeout=25) == 3
