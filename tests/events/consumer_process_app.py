"""The app of the tests of consumers in processes of their own. Children import it as this module."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from holdfast import Backoff, Event, Holdfast, Job, event

app = Holdfast("postgresql://unused.invalid/none")


@event("order.paid", key="order:{order_id}")
@dataclass
class OrderPaid:
    order_id: int
    cents: int


def note(*words: object) -> None:
    with Path(os.environ["CONSUMER_NOTES"]).open("a", encoding="utf-8") as file:
        file.write(" ".join(map(str, words)) + "\n")


@app.on(OrderPaid, process=True, start="start", max_attempts=3, retry=Backoff(first=0.01, cap=0.02))
def crunch(job: Job, event: Event[OrderPaid]) -> None:
    note(os.getpid(), event.position, event.key, type(event.data).__name__, event.data.cents)
    if event.data.cents < 0 and job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
