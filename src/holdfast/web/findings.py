"""Findings of the doctor on a page: a sentence, and the fix as buttons, links, or commands to copy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.cli.advice import Shell
from holdfast.operate.advice import Advice
from holdfast.operate.doctor.finding import Finding
from holdfast.pages import Link, Offer

Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Todo:
    """What to do: at least the command."""

    command: str
    offer: Offer | None = None
    link: Link | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    finding: Finding
    todo: Sequence[Todo]
    otherwise: Sequence[Todo]


def shown_findings(findings: Sequence[Finding], shell: Shell) -> list[Shown]:
    return [
        Shown(
            f,
            [todo_of(a, shell) for a in f.fix],
            [todo_of(a, shell) for a in f.otherwise if a not in f.fix],
        )
        for f in findings
    ]


def todo_of(advice: Advice, shell: Shell) -> Todo:
    offer = _OFFERS.get(advice.code)
    link = _LINKS.get(advice.code)
    return Todo(
        shell.line(advice),
        offer(advice.data) if offer else None,
        link(advice.data) if link else None,
    )


def _release(of: Data) -> Offer | None:
    keys = of["keys"]
    which = {"key": keys[0]} if keys is not None and len(keys) == 1 else {"all": "1"}
    given = {"queue": of["queue"], **which}
    if not of["how"]:
        return Offer("keys release", given)
    return Offer("keys release", {**given, "how": of["how"]}, f"Release, {of['how']}")


def _lift(of: Data) -> Offer | None:
    return Offer("keys lift", {"queue": of["queue"], "key": of["keys"][0]}) if len(of["keys"]) == 1 else None


def _jobs(verb: str) -> Callable[[Data], Offer | None]:
    def offer(of: Data) -> Offer | None:
        if "ids" in of:
            return Offer(f"jobs {verb}", {"ids": " ".join(map(str, of["ids"]))})
        return Offer(f"jobs {verb}", {name: of[name] for name in ("state", "task") if name in of})

    return offer


def _redrive(of: Data) -> Offer | None:
    if "id" in of:
        return Offer("dead redrive", {"ids": str(of["id"])})
    return Offer("dead redrive", {"task": of["task"], "newer_than": "1h", "rate": "50/s"})


def _fix(of: Data) -> Offer | None:
    limits = " ".join(f"{name}={value:g}" for name, value in of["limits"].items())
    return Offer("doctor fix", {"fix": of["name"], **({"limits": limits} if limits else {})})


def _set_queue(of: Data) -> Offer | None:
    label = f"Raise {of['rule'].replace('_', ' ')}"
    return Offer("queue set", {"queue": of["queue"], "rule": of["rule"], "value": str(of["value"])}, label)


def _run(of: Data) -> Offer | None:
    known = ("retry", "resume", "cancel")
    return Offer(f"workflow {of['verb']}", {"run": str(of["id"])}) if of["verb"] in known else None


def _subscription(of: Data) -> Offer | None:
    given = {"name": of["name"], **({"to": of["to"]} if "to" in of else {})}
    return Offer(f"subscriptions {of['verb']}", given)


def _webhook(of: Data) -> Offer | None:
    return (
        None if of["endpoint"] is None else Offer(f"webhook {of['verb']}", {"endpoint": str(of["endpoint"])})
    )


_OFFERS: dict[str, Callable[[Data], Offer | None]] = {
    "resume_queue": lambda of: Offer("queue resume", {"queue": of["name"]}),
    "resume_task": lambda of: Offer("task resume", {"task": of["name"]}),
    "release_keys": _release,
    "lift_keys": _lift,
    "retry_jobs": _jobs("retry"),
    "cancel_jobs": _jobs("cancel"),
    "discard_jobs": _jobs("discard"),
    "redrive_dead": _redrive,
    "fix": _fix,
    "set_queue": _set_queue,
    "create_queue": lambda of: Offer("queue create", {"queue": of["queue"]}),
    "drain_workers": lambda of: Offer("workers drain", {"ids": " ".join(of["workers"])}),
    "pause_schedule": lambda of: Offer("schedule pause", {"name": of["name"]}),
    "remove_schedule": lambda of: Offer("schedule remove", {"name": of["name"]}),
    "retry_projection": lambda of: Offer("projection retry", {"name": of["name"]}),
    "cancel_rebuild": lambda of: Offer("projection cancel", {"name": of["name"]}),
    "operation": lambda of: Offer(f"operations {of['verb']}", {"id": str(of["id"])}),
    "run": _run,
    "subscription": _subscription,
    "webhook": _webhook,
}
_LINKS: dict[str, Callable[[Data], Link]] = {
    "list_jobs": lambda _: Link("Jobs", "jobs"),
    "show_job": lambda of: Link("Show job", f"jobs/{of['id']}"),
    "explain_job": lambda of: Link("Explain", f"jobs/{of['id']}"),
    "list_dead": lambda _: Link("Dead letters", "dead"),
    "list_dead_of": lambda of: Link("Dead letters", "dead", {"task": of["task"]}),
    "stuck_keys": lambda _: Link("Keys", "keys"),
    "show_key": lambda of: Link("Show key", f"keys/{of['queue']}", {"key": of["key"]}),
    "show_ring": lambda _: Link("Ring", "keys"),
    "show_queue": lambda of: Link("Open queue", f"queues/{of['queue']}"),
    "list_tasks": lambda _: Link("Tasks", "limits"),
    "list_workers": lambda _: Link("Workers", "workers"),
    "overview": lambda _: Link("Overview", ""),
    "events_lag": lambda _: Link("Events", "events"),
    "list_runs": lambda of: Link("Runs", "workflows", {"workflow": of["workflow"]}),
    "check": lambda _: Link("Doctor", "doctor"),
}
