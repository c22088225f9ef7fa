"""The app of the crash tests of rebuilds: a projection whose tables are made anew, in small batches."""

import os
from typing import Any

from tests.crash import statements
from tests.crash.crash_app import QUICK

from holdfast import AsyncTransaction, Event, Holdfast
from holdfast.shapes.events import rebuild

app = Holdfast()  # database and timings come from HOLDFAST_ variables
TABLE = "CREATE TABLE totals (key text PRIMARY KEY, n int NOT NULL)"
ADD = "INSERT INTO totals AS t VALUES (%s, 1) ON CONFLICT (key) DO UPDATE SET n = t.n + 1"


@app.projection("totals", on=["*"], tables=["totals"], max_attempts=1000, retry=QUICK)
async def totals(tx: AsyncTransaction, events: list[Event[Any]]) -> None:
    for event in events:
        await tx.execute(ADD, [event.key])


if "CRASH_FOLDER" in os.environ:  # in the worker's process only
    rebuild.BATCH = 40
    statements.mark()
