"""A destination in memory that does what a test says, and a worker around it."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tests.conftest import QUICK, await_until

from holdfast.testing import Kit
from holdfast.transport import Capabilities, Confirmed, Health, Outcome, OutMessage

STEADY = replace(QUICK, dead_after=5.0, lease=10.0)  # a lease that outlasts a busy machine

Verdict = Callable[[OutMessage], Outcome | None]


def n_of(message: OutMessage) -> int:
    return int(json.loads(message.body)["data"]["n"])


class Memory:
    """Stores what `verdict` lets through. None: confirmed."""

    def __init__(self, verdict: Verdict = lambda _: None, **capabilities: Any) -> None:
        self.verdict = verdict
        self.stored: list[OutMessage] = []
        self.tried: list[OutMessage] = []
        self.batches: list[list[OutMessage]] = []
        self.in_flight: list[OutMessage] = []
        self.most_in_flight = 0
        self.opened = 0
        self.closed = 0
        self.gate = asyncio.Event()
        self.gate.set()
        options: dict[str, Any] = {"order": "key", "max_bytes": 10_000, **capabilities}
        self.capabilities = Capabilities(**options)

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
        self.batches.append(list(batch))
        for message in batch:
            lane = message.key
            same = [m for m in self.in_flight if lane is not None and m.key == lane]
            assert self.capabilities.in_flight == "prefix" or not same, "two messages of a key in flight"
            self.in_flight.append(message)
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        try:
            await asyncio.sleep(0)
            await self.gate.wait()
            return [self._store(message) for message in batch]
        finally:
            for message in batch:
                self.in_flight.remove(message)

    def _store(self, message: OutMessage) -> Outcome:
        self.tried.append(message)
        outcome = self.verdict(message)
        if outcome is None:
            self.stored.append(message)
            return Confirmed()
        return outcome

    async def check(self, destinations: Iterable[str]) -> Health:
        return Health(True)

    def of(self, key: str | None) -> list[int]:
        return [n_of(m) for m in self.stored if m.key == key]


def position(kit: Kit, name: str = "out") -> int:
    (row,) = kit.sql("SELECT position FROM holdfast.subscriptions WHERE name = %s", [name])
    return int(row["position"])


async def reaches(kit: Kit, wanted: int, name: str = "out") -> None:
    def there() -> bool:
        found = kit.sql("SELECT position FROM holdfast.subscriptions WHERE name = %s", [name])
        return bool(found) and found[0]["position"] >= wanted

    await await_until(there, f"{name} is at position {wanted}")
