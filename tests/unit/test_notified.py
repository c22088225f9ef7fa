"""A notification is for what is new; everything else is looked for where that does not explain it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from holdfast.runtime import sleep
from holdfast.runtime.claim.claimer import Ask
from holdfast.runtime.claim.notified import NotifiedClaimer
from holdfast.runtime.claim.portions import Portions
from holdfast.runtime.claim.queues import Queues
from holdfast.runtime.slots import Slots


class Lost:
    async def give_back(self) -> None: ...

    def accounted(self) -> Any:
        return Portions(1 << 20).of("none", 1, 0)


class Some:
    """Queues with that many new jobs in each."""

    def __init__(self, new: dict[str, int]) -> None:
        self.lost_replies = Lost()
        self.portions = Portions(1 << 20)
        self._new = new

    def __getitem__(self, name: str) -> Any:
        async def claim_new(ask: Ask) -> list[Any]:
            return [SimpleNamespace(payload="{}", locked=1)] * min(self._new[name], ask.want)

        return SimpleNamespace(claim_new=claim_new)


@pytest.mark.parametrize(
    ("new", "want", "looks"),
    [
        ({"a": 1}, 5, 0),
        ({"a": 1, "b": 2}, 5, 0),
        ({"a": 0}, 5, 1),
        ({"a": 3, "b": 0}, 5, 1),
        ({"a": 3, "b": 1}, 3, 1),  # no room for those of b
        ({"a": 1}, 0, 1),
        ({}, 5, 0),
    ],
)
async def test_what_new_jobs_do_not_explain_is_looked_for_everywhere(
    new: dict[str, int], want: int, looks: int
) -> None:
    looked: list[None] = []
    claimer = NotifiedClaimer(cast(Queues, Some(new)), lambda: list(new), lambda: looked.append(None))
    found = await claimer.claim(Ask(str(uuid4()), want))
    assert len(found) == min(sum(new.values()), want)
    assert len(looked) == looks


def test_only_a_worker_that_is_told_is_calm() -> None:
    slots = Slots(4, 0)
    told: dict[bool, Callable[[], bool]] = {yes: lambda yes=yes: yes for yes in (True, False)}  # type: ignore[misc]
    for enough in (True, False):
        for yes, tells in told.items():
            slots.enough, slots.told = enough, tells
            assert slots.calm == (enough and yes)
            assert slots.content(0) == slots.calm, "a free slot is a reason to look, unless it is told"
            assert slots.pause == (sleep.CALM_PAUSE if slots.calm else sleep.FIRST_PAUSE)
