"""An app before its tasks change. What each change is, says evolving_new.py."""

import tests.crash.crash_app  # noqa: F401 writes down what happens

from holdfast import Holdfast

app = Holdfast()


@app.task
async def grows(a: int) -> str:
    return "old"


@app.task
async def shrinks(a: int, b: int = 7) -> str:
    return "old"


@app.task
async def needs(a: int) -> str:
    return "old"


@app.task
async def retyped(a: int) -> str:
    return "old"


@app.task(queue="steps")
async def in_order(a: int) -> str:
    return "old"


@app.task
async def bumped(a: int) -> str:
    return "old"


@app.task
async def upgraded(a: int) -> str:
    return "old"


@app.task
async def renamed(a: int, b: int) -> str:
    return "old"


@app.task(name="before")
async def aliased(a: int) -> str:
    return "old"


app.queue("steps", ordering="key")

JOBS = [
    (grows, (1,), "either"),
    (shrinks, (1, 2), "old"),
    (needs, (1,), "old"),
    (retyped, (1,), "old"),
    (bumped, (1,), "old"),
    (upgraded, (1,), "either"),
    (renamed, (1, 2), "either"),
    (aliased, (1,), "either"),
]
ORDERED = [(in_order, (1,), "either")]
