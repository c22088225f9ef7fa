"""The app of tests that kill workers: every body writes a line before it does anything else."""

import json
import os
import time
from pathlib import Path

from holdfast import Holdfast, Signal, Workflow, current_step, telemetry

FOLDER = Path(os.environ.get("CRASH_FOLDER", "/nonexistent"))
app = Holdfast()
GO = Signal("go", str)


def _keep(event: telemetry.Event) -> None:
    if event.name == "worker.started":
        with (FOLDER / f"events-{os.getpid()}").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": event.name, "at": time.time()}) + "\n")


if FOLDER.exists():  # in a worker that a test has started; not where the test itself imports this
    telemetry.subscribe(_keep)


async def note(word: str) -> str:
    with (FOLDER / "bodies").open("a", encoding="utf-8") as file:
        file.write(current_step().idempotency_key.partition(":")[2] + "\n")
    return word.upper()


async def lane(wf: Workflow, number: int) -> str:
    """Branches of different lengths: they end in another order than they began."""
    words = [await wf.step(note, f"{number}.{n}") for n in range(4 - number)]
    return " ".join(words)


@app.workflow()
async def lanes(wf: Workflow) -> list[str]:
    first = await wf.step(note, "first")
    found = await wf.gather(*(lane(wf, number) for number in range(4)))
    return [first, *found, await wf.step(note, "last")]


@app.workflow(sticky=600)
async def rests(wf: Workflow) -> str:
    """Would stay in memory for ten minutes."""
    await wf.step(note, "once")
    return await wf.signal(GO)
