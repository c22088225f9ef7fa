"""The app of the measurement with child processes: they import it, so it cannot be made inside a function."""

from ..app import Holdfast

app = Holdfast()


@app.task(process=True)
def nothing_in_a_process(n: int) -> None:
    return None
