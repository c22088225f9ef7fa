"""The act that enqueues one job by hand. With the code of its task its arguments are checked, as on the command line."""

from typing import Any

from holdfast.cli.arguments import parse_moment, parse_object
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.operate.producing import make_job
from holdfast.pages import Act, ActResult, Field, Given, Preview
from holdfast.tasks.newjob import NewJob
from holdfast.tasks.taskset import TaskSet
from holdfast.web.filters import text, whole_number

_FIELDS = (
    Field("task", "Task", shown=True),
    Field(
        "arguments",
        "Arguments, as a JSON object",
        "json",
        required=False,
        value="{}",
        hint='{"order_id": 17}',
        shown=True,
    ),
    Field("queue", "Queue", required=False, hint="Empty: the task's.", shown=True),
    Field("key", "Key", required=False, hint="Its jobs belong together.", shown=True),
    Field("run_after", "Not before", "time", required=False, hint="15m, or 2026-05-01T10:00Z", shown=True),
    Field("priority", "Priority", "number", required=False, shown=True),
    Field("tags", "Tags", required=False, hint="With spaces between them.", shown=True),
    Field(
        "idempotency_key",
        "Idempotency key",
        required=False,
        hint="The same key and arguments give the same job.",
        shown=True,
    ),
)


def enqueue_act(tasks: TaskSet) -> Act:
    """`tasks` are those of the app; without any, arguments go as they are."""

    def preview(given: Given) -> Procedure[Preview]:
        yield from ()
        row = _job(tasks, given).row
        unchecked = (
            [] if tasks.known() else ["The code is not at hand: whether the arguments fit is not checked."]
        )
        return Preview(f"A job of {row.task} would be enqueued in queue {row.queue}.", warnings=unchecked)

    def do(given: Given) -> Procedure[ActResult]:
        made = yield from Operator.enqueue.procedure(_job(tasks, given), tasks.queue_rules())
        said = f"Job {made.id} is enqueued." if made.created else f"Job {made.id} was there already."
        return ActResult(said, {"id": made.id, "created": made.created}, f"jobs/{made.id}")

    return Act("enqueue", "Enqueue", do, _FIELDS, _words, preview)


def _job(tasks: TaskSet, given: Given) -> NewJob[Any]:
    run_after, tags = text(given, "run_after"), text(given, "tags")
    options: Any = {
        "queue": text(given, "queue"),
        "partition_key": text(given, "key"),
        "priority": whole_number(given, "priority"),
        "run_after": None if run_after is None else parse_moment(run_after, "run_after"),
        "tags": None if tags is None else tags.split(),
        "idempotency_key": text(given, "idempotency_key"),
    }
    asked: Any = {name: value for name, value in options.items() if value is not None}
    arguments = parse_object(given.get("arguments") or "{}", "arguments")
    return make_job(tasks if tasks.known() else None, given["task"], arguments, asked)


def _words(given: Given) -> list[str]:
    """Without the arguments, which are in no address either."""
    found = ["enqueue", given.get("task", "TASK")]
    for name in ("queue", "key", "priority", "run_after", "idempotency_key"):
        found += [f"--{name.replace('_', '-')}", given[name]] if given.get(name) else []
    return [*found, *(word for tag in given.get("tags", "").split() for word in ("--tag", tag))]
