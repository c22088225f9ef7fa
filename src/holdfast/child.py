"""`python -m holdfast.child FD`: the process that a worker starts for handlers with process=True."""

import contextlib
import sys
from collections.abc import AsyncIterator

from .app import Holdfast
from .errors import ConfigurationError
from .runtime.processes.child_main import Loaded, run
from .runtime.processes.frames import Frame
from .runtime.processes.origin import Origin
from .settings import Settings


def load(hello: Frame) -> Loaded:
    """The worker's app, on the worker's database and with its settings."""
    where = Origin(**hello["app"])
    app = where.load()
    if not isinstance(app, Holdfast):
        raise ConfigurationError(f"{where} is not a Holdfast app here but {type(app).__name__}")
    app.load()
    app._use(hello["url"], Settings(**hello["settings"]))
    tasks = app.tasks
    tasks.check()

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with app._lifespan(app) if app._lifespan is not None else contextlib.nullcontext():
            yield

    names = [handler.name for handler in tasks.handlers() if handler.process]
    return Loaded(app.database, tasks, names, app._middleware, lifespan, app._recorders())


if __name__ == "__main__":
    run(int(sys.argv[1]), load)
