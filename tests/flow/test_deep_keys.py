"""A key with many jobs that cannot be taken costs the others nothing, however often somebody is notified of these."""

from typing import Any

import pytest
from tests.flow.test_flow_control import Make, claimer, limited

from holdfast import Holdfast
from holdfast.runtime.claim import keyed
from holdfast.runtime.claim.claimer import Ask
from holdfast.runtime.claim.keyed import KeyedClaimer

DEEP = 3 * keyed._ROWS
RULES: dict[str, Any] = {"fair": True, "key_concurrency": 1}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each look along the jobs that are due: whether it passed as many as one may."""
    found: list[bool] = []
    look = KeyedClaimer._look

    async def noted(self: KeyedClaimer) -> bool:
        found.append(await look(self))
        return found[-1]

    monkeypatch.setattr(KeyedClaimer, "_look", noted)
    return found


async def test_a_deep_key_at_its_limit_is_not_passed_for_each_notification(
    app: Holdfast, holdfast_kit: Make, monkeypatch: pytest.MonkeyPatch, looks: list[bool]
) -> None:
    monkeypatch.setattr(keyed, "_SELDOM", 1e9)  # it took long
    kit, _, work = limited(app, holdfast_kit, **RULES)
    await app.aenqueue_many(work.using(partition_key="deep").job() for _ in range(DEEP))
    (late,) = await app.aenqueue_many([work.using(partition_key="late").job()])
    due = "UPDATE holdfast.work SET available_at = holdfast.now() + interval '1 hour' * %s WHERE id = %s"
    kit.sql(due, [1, late.id])
    async with claimer(kit, **RULES) as (claims, me):

        async def notified() -> list[str | None]:
            claims.look_again()
            return [job.partition_key for job in await claims.claim(Ask(me, 10))]

        assert await notified() == ["deep"], "one of it may run"
        assert sum(looks) == 3
        for n in range(20):
            await work.using(partition_key=f"k{n}").aenqueue()
            assert await notified() == [f"k{n}"]
        assert sum(looks) == 3, "what was passed was not passed again"
        kit.sql(due, [-1, late.id])
        assert await notified() == ["late"], "though it lies among what was passed"
        claims.look_again(thorough=True)
        await claims.claim(Ask(me, 10))
        assert sum(looks) == 6
        monkeypatch.setattr(keyed, "_SELDOM", 0)  # it took no time at all
        for passed in (6, 9, 12):
            claims.look_again(thorough=passed == 6)
            await claims.claim(Ask(me, 10))
            assert sum(looks) == passed + 3
