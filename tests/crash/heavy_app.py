"""An app whose payloads are long."""

import resource

import tests.crash.crash_app  # noqa: F401 writes down what happens

from holdfast import Holdfast

app = Holdfast()


@app.task
async def weigh(text: str) -> int:
    return len(text)


@app.task
async def memory(text: str = "") -> int:
    """The most memory that this process ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
