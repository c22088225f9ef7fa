"""What holds work back on purpose: limits of queues, paused tasks, breakers, held keys."""

from typing import TYPE_CHECKING

from holdfast.operate.operator import Operator
from holdfast.operate.pauses import TaskLine
from holdfast.operate.procedure import Procedure
from holdfast.pages import (
    Cell,
    Code,
    Link,
    Offer,
    Page,
    PageRequest,
    Problem,
    Row,
    Span,
    State,
    Table,
    Use,
    View,
)
from holdfast.store.breaker import BreakerSeen
from holdfast.web.shown import number, span

if TYPE_CHECKING:
    from holdfast.web.site import Site


def page(site: "Site") -> Page:
    def load(asked: PageRequest) -> Procedure[View]:
        rules = yield from Operator.list_rules.procedure()
        tasks = yield from Operator.list_tasks.procedure({name for name, _ in asked.tasks.known()})
        held = yield from Operator.held_keys.procedure()
        limits = []
        for name, seen in rules.items():
            most = seen.rules.get("concurrency")
            use: Cell = (
                Use(seen.running, most) if seen.running is not None and isinstance(most, int) else None
            )
            said = ", ".join(f"{rule} {value}" for rule, value in seen.rules.items())
            cells = (
                Link(name, f"queues/{name}"),
                said,
                use,
                Span(seen.next_in) if seen.next_in else None,
                seen.keys_full,
            )
            limits.append(
                Row(cells, (Offer("queue set", {"queue": name, "rule": "concurrency"}, "Change…"),), name)
            )
        blocks = [
            Table(
                ("Task", "State", "Failures#", "Last error~", "Tried job", "Jobs set aside#", "Workers that know it#"),
                [_task(task) for task in tasks],
                "Tasks and breakers",
                f"{len(tasks)}",
                "No task is known: no worker has been here yet.",
            ),
            Table(
                ("Queue", "Rules~", "In use", "Next start in#", "Keys at their limit#"),
                limits,
                "Limits of queues",
                "",
                "No queue has a limit.",
            ),
            Table(
                ("Key", "Queue", "Until", "Why~"),
                [
                    Row((Code(h.key), Link(h.queue, f"queues/{h.queue}"), h.until, Problem(h.reason, words=True)),
                        (Offer("keys lift", {"queue": h.queue, "key": h.key}),), f"{h.queue}:{h.key}")
                    for h in held.holds
                ],
                "Held keys",
                "",
                "No key is held.",
            ),
        ]  # fmt: skip
        return View(blocks, {"rules": rules, "tasks": tasks, "held": held}, ("task", "list"))

    return Page("limits", "Limits, breakers", load, "Work", "limits", live=2)


def _task(task: TaskLine) -> Row:
    state = State("runs", "done")
    offer = Offer("task pause", {"task": task.task})
    breaker = task.breaker
    if breaker is not None and breaker.state != "closed":
        state = State(f"breaker {breaker.state.replace('_', ' ')}", "dead", _trial(breaker))
        offer = Offer("task resume", {"task": task.task}, "Close breaker")
    if task.pause is not None:
        by = task.pause.paused_by or "somebody"
        state = State("paused", "held", f"{span(task.pause.paused_seconds)}, by {by}")
        offer = Offer("task resume", {"task": task.task})
    held = (
        None if task.held is None else Link(number(task.held), "jobs", {"state": "held", "task": task.task})
    )
    counted = None if breaker is None else breaker.failures or breaker.trials or None
    trial = None if breaker is None or breaker.trial_job is None else breaker.trial_job
    tried = None if trial is None else Link(str(trial), f"jobs/{trial}", code=True)
    error = None if breaker is None or not breaker.last_error else Problem(breaker.last_error)
    name = Link(task.task, "jobs", {"task": task.task})
    return Row((name, state, counted, error, tried, held, task.workers), (offer,), task.task)


def _trial(breaker: BreakerSeen) -> str:
    """When a job is let through to try, as `holdfast task list` says it."""
    since = f"for {span(breaker.open_seconds or 0.0)}"
    if breaker.trial_job is not None:
        return f"{since}, a job is tried"
    left = breaker.trial_in_seconds or 0.0
    return f"{since}, {f'next trial in {span(left)}' if left > 0 else 'the next trial is due'}"
