"""The app of the workers that the measurement of wake-ups starts."""

from ..app import Holdfast

app = Holdfast()


@app.task
async def touch(n: int) -> None:
    return None
