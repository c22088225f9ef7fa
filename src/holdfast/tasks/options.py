"""The options of enqueue and of task: their types, and their run-time checks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypedDict
from uuid import UUID

from ..errors import InvalidOption, TaskDefinitionError
from ..model.backoff import Backoff
from ..model.breaker import Breaker
from ..model.duration import Duration
from ..runtime.job import Job
from . import checks
from .handle import JobHandle
from .newjob import NewJob, follow_ups, parent
from .payload import shown

LEAST_MEMORY = 64 * 1024 * 1024


class EnqueueOptions(TypedDict, total=False):
    """What `using()` and `send()` take: `send_receipt.using(queue="mail", run_after=30)`."""

    conn: object
    queue: str
    partition_key: str
    idempotency_key: str
    idempotency_lifetime: Duration | Literal["forever"]
    run_after: datetime | Duration
    priority: int
    max_attempts: int
    tags: Sequence[str]
    metadata: Mapping[str, object]
    then: NewJob[Any] | Sequence[NewJob[Any]]
    parent: UUID | Job | JobHandle[Any]
    replace_key: str


class TaskOptions(TypedDict, total=False):
    """What the task decorator takes: `@app.task(queue="mail", max_attempts=5, timeout=60)`."""

    name: str
    aliases: Sequence[str]
    version: int
    upgrade: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]
    queue: str
    priority: int
    max_attempts: int
    retry: Backoff
    lease: Duration
    timeout: Duration
    process: bool
    memory_limit: int
    breaker: Breaker
    keep_completed: bool
    masked: Sequence[str]


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Checked TaskOptions."""

    name: str | None = None
    aliases: tuple[str, ...] = ()
    version: int = 1
    upgrade: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)
    queue: str = "inbox"
    priority: int = 0
    max_attempts: int = 5
    retry: Backoff = field(default_factory=Backoff)
    lease: float | None = None
    timeout: float | None = None
    process: bool = False
    memory_limit: int | None = None
    breaker: Breaker | None = None
    keep_completed: bool | None = None  # None: as its queue says
    masked: tuple[str, ...] = ()  # arguments and fields of them and of the result that are masked


_ENQUEUE: dict[str, Callable[[Any], Any]] = {
    "conn": lambda v: v,
    "queue": lambda v: checks.queue_name(v, InvalidOption),
    "partition_key": lambda v: checks.key(v, "partition_key", InvalidOption, empty=True),
    "idempotency_key": lambda v: checks.key(v, "idempotency_key", InvalidOption, empty=False),
    "idempotency_lifetime": lambda v: checks.lifetime(v, InvalidOption),
    "run_after": lambda v: checks.moment(v, InvalidOption),
    "priority": lambda v: checks.integer(v, "priority", -100, 100, InvalidOption),
    "max_attempts": lambda v: checks.integer(v, "max_attempts", 1, 1000, InvalidOption),
    "tags": lambda v: checks.tags(v, InvalidOption),
    "metadata": lambda v: checks.metadata(v, InvalidOption),
    "then": follow_ups,
    "parent": parent,
    "replace_key": lambda v: checks.key(v, "replace_key", InvalidOption, empty=False),
}


def enqueue_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Checked EnqueueOptions as values of NewRow, by option name; InvalidOption says what to do."""
    checks.known_names(options, _ENQUEUE, "enqueue", InvalidOption)
    return {name: _ENQUEUE[name](value) for name, value in options.items()}


def task_settings(options: Mapping[str, Any]) -> TaskSettings:
    """Checked TaskOptions; TaskDefinitionError says what to do."""
    checks.known_names(options, TaskOptions.__annotations__, "task", TaskDefinitionError)
    values: dict[str, Any] = {name: check(options[name]) for name, check in _TASK.items() if name in options}
    if "upgrade" in options:
        values["upgrade"] = _upgrade(options["upgrade"], values.get("version", 1))
    if "memory_limit" in values and not values.get("process"):
        raise TaskDefinitionError(
            "memory_limit needs process=True: only a process of its own can be limited. "
            "Add process=True, or leave memory_limit out"
        )
    return TaskSettings(**values)


def _period(what: str) -> Callable[[Any], float]:
    return lambda v: checks.period(v, what, TaskDefinitionError)


def _aliases(value: object) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise TaskDefinitionError(
            f"aliases must be a list of task names, not {shown(value)}. Write aliases=[...]"
        )
    return tuple(checks.task_name(alias, "each alias", TaskDefinitionError) for alias in value)


def _retry(value: object) -> Backoff:
    if not isinstance(value, Backoff):
        raise TaskDefinitionError(
            f"retry must be a Backoff, not {shown(value)}. Write retry=Backoff(first=2, cap=600)"
        )
    return value


def _breaker(value: object) -> Breaker:
    if not isinstance(value, Breaker):
        raise TaskDefinitionError(
            f"breaker must be a Breaker, not {shown(value)}. Write breaker=Breaker(failures=5, cooldown=30)"
        )
    return value


def _upgrade(value: object, version: int) -> dict[int, Callable[[dict[str, Any]], dict[str, Any]]]:
    if not isinstance(value, Mapping):
        raise TaskDefinitionError(
            f"upgrade must map a version to a function, not {shown(value)}. Write upgrade={{1: fn}}"
        )
    for step, function in value.items():
        if not isinstance(step, int) or isinstance(step, bool) or not 1 <= step < version:
            raise TaskDefinitionError(
                f"upgrade key {step!r} must be an older version than version={version}, from 1 on"
                if version > 1
                else f"upgrade key {step!r} needs a newer version=; this task has version 1"
            )
        if not callable(function):
            raise TaskDefinitionError(f"upgrade[{step}] must be a function of a dict, not {shown(function)}")
    missing = [step for step in range(min(value, default=version), version) if step not in value]
    if missing:
        raise TaskDefinitionError(
            f"upgrade has no step from version {missing[0]} to {missing[0] + 1}. Add upgrade[{missing[0]}]"
        )
    return dict(value)


def _memory_limit(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < LEAST_MEMORY:
        raise TaskDefinitionError(
            f"memory_limit must be bytes, at least {LEAST_MEMORY} (64 MB; a Python process needs about half of that for "
            f"itself), not {shown(value)}. Write memory_limit=512 * 1024 * 1024"
        )
    return value


def masked_names(value: object) -> tuple[str, ...]:
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(isinstance(v, str) and v for v in value)
    ):
        raise TaskDefinitionError(f'masked must be a list of names such as ["diagnosis"], not {shown(value)}')
    return tuple(value)


_TASK: dict[str, Callable[[Any], Any]] = {
    "name": lambda v: checks.task_name(v, "name", TaskDefinitionError),
    "aliases": _aliases,
    "version": lambda v: checks.integer(v, "version", 1, 2**31 - 1, TaskDefinitionError),
    "queue": lambda v: checks.queue_name(v, TaskDefinitionError),
    "priority": lambda v: checks.integer(v, "priority", -100, 100, TaskDefinitionError),
    "max_attempts": lambda v: checks.integer(v, "max_attempts", 1, 1000, TaskDefinitionError),
    "retry": _retry,
    "lease": _period("lease"),
    "timeout": _period("timeout"),
    "process": lambda v: checks.yes_or_no(v, "process", TaskDefinitionError),
    "memory_limit": _memory_limit,
    "breaker": _breaker,
    "keep_completed": lambda v: checks.yes_or_no(v, "keep_completed", TaskDefinitionError),
    "masked": masked_names,
}
