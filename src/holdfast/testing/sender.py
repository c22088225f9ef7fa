"""The sender of the conformance suite."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence

from ..transport import Confirmed, Outcome, OutMessage, Refused, RetryLater, Transport


class Sender:
    """Behaves like a relay: lanes, one connection, and every unconfirmed message again."""

    def __init__(self, transport: Transport, timeout: float = 5.0) -> None:
        self.transport = transport
        self.timeout = timeout
        self.confirmed: list[OutMessage] = []
        self.unknown = 0
        self._is_open = False

    async def send(
        self, messages: Sequence[OutMessage], *, between: Callable[[int], Awaitable[None]] | None = None
    ) -> None:
        """Until all are confirmed. `between` is called before each batch with its number."""
        prefix = self.transport.capabilities.in_flight == "prefix"
        lanes: dict[object, deque[OutMessage]] = defaultdict(deque)
        for message in messages:
            total = self.transport.capabilities.order == "destination"
            lanes[message.destination if total else (message.key or message.id)].append(message)
        round_ = 0
        while any(lanes.values()):
            if between is not None:
                await between(round_)
            round_ += 1
            batch = [message for lane in lanes.values() for message in list(lane)[: 20 if prefix else 1]][
                : self.transport.capabilities.max_batch
            ]
            for message, outcome in zip(batch, await self.once(batch), strict=True):
                lane = next(lane for lane in lanes.values() if lane and message in lane)
                if isinstance(outcome, Confirmed) and lane[0] is message:
                    self.confirmed.append(lane.popleft())
                assert not isinstance(outcome, Refused), outcome

    async def once(self, batch: Sequence[OutMessage]) -> Sequence[Outcome]:
        try:
            if not self._is_open:
                await self.transport.open()
                self._is_open = True
            outcomes = await self.transport.publish(batch, timeout=self.timeout)
        except Exception as error:  # noqa: BLE001 the protocol allows it
            outcomes = [RetryLater(str(error), unknown=True)] * len(batch)
        assert len(outcomes) == len(batch), "as many outcomes as messages"
        if any(isinstance(outcome, RetryLater) and outcome.unknown for outcome in outcomes):
            self.unknown += 1
            await self.close()
            await asyncio.sleep(0.05)
        return outcomes

    async def close(self) -> None:
        self._is_open = False
        await self.transport.close()
