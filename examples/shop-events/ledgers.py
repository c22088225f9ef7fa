"""The ledgers, and the verdict that they give: the event log, the broker's stream, the warehouse's file, the orders.

The log says what was committed, and in which order. What left the database is compared with it, id by id.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy

from holdfast import Event, Holdfast

PAGE = 500


@dataclass(frozen=True)
class Arrived:
    """What one ledger outside holds, against the log."""

    where: str
    messages: int
    lost: int  # in the log and not there
    strange: int  # there and not in the log
    repeated: int  # there again, with the id of one before
    out_of_order: int  # the first of its id, behind a later one of its key

    def broken(self) -> list[str]:
        promises = [
            (self.lost == 0, f"{self.lost} events did not reach {self.where}"),
            (self.strange == 0, f"{self.strange} messages in {self.where} are of no event"),
            (self.out_of_order == 0, f"{self.out_of_order} messages came to {self.where} out of order"),
        ]
        return [words for kept, words in promises if not kept]


@dataclass(frozen=True)
class Books:
    """What the database says in the end."""

    placed: int  # orders
    acknowledged: int  # payments that the provider got 2xx for
    sent: int  # requests of the provider, repeats included
    paid: int  # orders
    paid_events: int
    cents: int  # of paid orders
    projected: int  # cents in customer_totals
    lag: int  # events that a subscriber has not passed, deliveries that are pending

    def broken(self) -> list[str]:
        promises = [
            (self.placed > 0, "no order was placed"),
            (
                self.paid == self.acknowledged,
                f"{self.acknowledged} payments were acknowledged, {self.paid} orders are paid",
            ),
            (self.paid_events == self.paid, f"{self.paid} orders are paid, by {self.paid_events} events"),
            (
                self.projected == self.cents,
                f"customer_totals has {self.projected} cents, the paid orders {self.cents}",
            ),
            (self.lag == 0, f"{self.lag} events are still on their way"),
        ]
        return [words for kept, words in promises if not kept]


def read_log(shop: Holdfast) -> list[Event[object]]:
    found: list[Event[object]] = []
    while page := shop.events.read(after=found[-1].position if found else 0, most=PAGE):
        found += page
    return found


async def read_broker(url: str, stream: str) -> list[str]:
    """The ids of all messages, in the order of the stream."""
    client = await nats.connect(url)
    try:
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
        js = client.jetstream()
        left = (await js.stream_info(stream)).state.messages
        reader = await js.subscribe("", stream=stream, ordered_consumer=True, config=config)
        found: list[str] = []
        while len(found) < left:
            message = await reader.next_msg(timeout=5)
            found.append((message.headers or {})["Nats-Msg-Id"])
        return found
    finally:
        await client.close()


def read_warehouse(ledger: Path) -> list[str]:
    lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []
    return [str(json.loads(line)["id"]) for line in lines]


def compare(where: str, log: Sequence[Event[object]], ids: Iterable[str]) -> Arrived:
    known = {str(event.id): event for event in log}
    newest: dict[str | None, int] = {}
    seen: set[str] = set()
    messages = strange = repeated = out_of_order = 0
    for name in ids:
        messages += 1
        event = known.get(name)
        if event is None:
            strange += 1
        elif name in seen:
            repeated += 1
        else:
            seen.add(name)
            out_of_order += event.position < newest.get(event.key, 0)
            newest[event.key] = max(event.position, newest.get(event.key, 0))
    return Arrived(where, messages, len(known) - len(seen), strange, repeated, out_of_order)


def verdict_lines(books: Books, arrived: Sequence[Arrived], wrong: Sequence[str]) -> list[str]:
    lines = [
        "Verdict, read from all ledgers:",
        f"  orders placed       {books.placed:>6}",
        f"  payments            {books.acknowledged:>6}  (in {books.sent} requests of the provider, repeats included)",
        f"  orders paid         {books.paid:>6}  (by {books.paid_events} events)",
        f"  cents in the totals {books.projected:>6}  (the paid orders have {books.cents})",
    ]
    lines += [
        f"  {there.where:<19} {there.messages:>6}  messages: {there.lost} lost, {there.out_of_order} out of order,"
        f" {there.repeated} repeated with the same id"
        for there in arrived
    ]
    lines.append(f"  lag                 {books.lag:>6}")
    return [*lines, f"BROKEN: {'; '.join(wrong)}." if wrong else "Every promise held."]
