"""The same app after a deploy: without a new payload version, with one, and with a function that upgrades old payloads."""

import tests.crash.crash_app  # noqa: F401 writes down what happens

from holdfast import Holdfast

app = Holdfast()


@app.task
async def grows(a: int, b: int = 7) -> str:
    return "new"


@app.task
async def shrinks(a: int) -> str:
    return "new"


@app.task
async def needs(a: int, b: int) -> str:
    return "new"


@app.task
async def retyped(a: str) -> str:
    return "new"


@app.task(queue="steps")
async def in_order(a: int, b: int = 7) -> str:
    return "new"


@app.task(version=2)
async def bumped(a: int, b: int) -> str:
    return "new"


@app.task(version=2, upgrade={1: lambda payload: {**payload, "b": 7}})
async def upgraded(a: int, b: int) -> str:
    return "new"


@app.task(version=2, upgrade={1: lambda payload: {"a": str(payload["a"]), "c": payload["b"]}})
async def renamed(a: str, c: int) -> str:
    return "new"


@app.task(name="after", aliases=["before"])
async def aliased(a: int) -> str:
    return "new"


app.queue("steps", ordering="key")

JOBS = [
    (grows, (1, 2), "new"),
    (shrinks, (1,), "either"),
    (needs, (1, 2), "new"),
    (retyped, ("x",), "new"),
    (bumped, (1, 2), "new"),
    (upgraded, (1, 2), "new"),
    (renamed, ("1", 2), "new"),
    (aliased, (1,), "new"),
]
ORDERED = [(in_order, (1, 2), "new")]
