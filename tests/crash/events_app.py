"""The app of the crash tests of events: a consumer, and projections that leave one row per event."""

import asyncio
import os
import time
from typing import Any

from tests.crash import statements
from tests.crash.crash_app import QUICK, is_open, write_line

from holdfast import AsyncTransaction, Event, Holdfast, Job, Transaction, telemetry

app = Holdfast()  # database and timings come from HOLDFAST_ variables

EFFECT = "INSERT INTO effects (who, position, pid) VALUES (%s, %s, %s)"
TABLES = "CREATE TABLE effects (who text NOT NULL, position bigint NOT NULL, pid int NOT NULL)"


@app.on("*", start="start", retry=QUICK, max_attempts=100)
def consume(job: Job, tx: Transaction, event: Event[Any]) -> None:
    tx.execute(EFFECT, ("consume", event.position, os.getpid()))


@app.projection("asynchronous", on=["*"], max_attempts=1000, retry=QUICK)
async def asynchronous(tx: AsyncTransaction, event: Event[Any]) -> None:
    """`block`: the event loop stands still until this gate is open."""
    if event.data.get("block"):
        write_line("begun", f"{os.getpid()}")
        while not is_open(event.data["block"]):
            time.sleep(0.01)
    await tx.execute(EFFECT, ("asynchronous", event.position, os.getpid()))
    await asyncio.sleep(0)


@app.projection("threaded", on=["*"], max_attempts=1000, retry=QUICK)
def threaded(tx: Transaction, event: Event[Any]) -> None:
    """`gate`: it waits there with its transaction open."""
    if event.data.get("gate"):
        write_line("begun", f"{os.getpid()}")
        while not is_open(event.data["gate"]):
            time.sleep(0.01)
    tx.execute(EFFECT, ("threaded", event.position, os.getpid()))


def _write_event(event: telemetry.Event) -> None:
    import json

    fields = {name: str(value) for name, value in event.fields.items()}
    write_line(f"events-{os.getpid()}", json.dumps({"name": event.name, "level": event.level, **fields}))


if "CRASH_FOLDER" in os.environ:
    telemetry.subscribe(_write_event)
    statements.mark()
