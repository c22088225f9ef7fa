"""The shell's completions after a TAB: names from the app and the database, quickly or not at all.

Nothing here may end in a traceback, a prompt or a wait: on any error, and after a second, there is nothing to offer; the
thread that still looks ends with the process. An embedded server is not started for it. Workers are offered by the last part
of their id, because a shell may split words at a colon.
"""

import contextlib
import io
import threading
from collections.abc import Callable, Iterable, Iterator

import typer

from holdfast.cli.apps import Where, load_app, named_app, operator_at
from holdfast.model.state import STATES
from holdfast.operate.operator import Operator

LIMIT = 1.0  # seconds
Offer = tuple[str, str]  # the word, and what it is


def complete_queue(context: typer.Context, incomplete: str) -> list[Offer]:
    return offered(incomplete, lambda: _queues(context))


def complete_task(context: typer.Context, incomplete: str) -> list[Offer]:
    return offered(incomplete, lambda: _tasks(context))


def complete_worker(context: typer.Context, incomplete: str) -> list[Offer]:
    return offered(incomplete, lambda: _workers(context))


def complete_state(incomplete: str) -> list[str]:
    return [state for state in STATES if state.startswith(incomplete)]


def _queues(context: typer.Context) -> Iterator[Offer]:
    with operator_of(context) as operator:
        yield from ((name, "queue") for name in operator.queue_names())


def _tasks(context: typer.Context) -> Iterator[Offer]:
    app = context.params.get("app")
    if app or named_app():
        yield from ((name, "task") for name, _ in load_app(app).tasks.known())
    with operator_of(context) as operator:
        yield from ((name, "task") for name in operator.known_tasks())


def _workers(context: typer.Context) -> Iterator[Offer]:
    with operator_of(context) as operator:
        for worker in operator.list_workers():
            yield worker.id.rpartition(":")[2], f"{worker.host}, process {worker.pid}, {worker.status}"


@contextlib.contextmanager
def operator_of(context: typer.Context) -> Iterator[Operator]:
    given = context.params
    where = Where(given.get("database_url"), given.get("app"))
    with operator_at(where, checked=False, looks=True) as operator:
        if operator.database.is_embedded:
            raise LookupError
        yield operator


def offered(incomplete: str, find: Callable[[], Iterable[Offer]]) -> list[Offer]:
    """What can be found in time, each word once."""
    found: dict[str, str] = {}

    def look() -> None:
        with contextlib.suppress(BaseException):
            found.update(find())

    thread = threading.Thread(target=look, daemon=True)
    silence = io.StringIO()  # an app that prints when it is imported must not be offered
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        thread.start()
        thread.join(LIMIT)
    return sorted(pair for pair in dict(found).items() if pair[0].startswith(incomplete))
