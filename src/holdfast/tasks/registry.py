"""Registry: where tasks and queues are declared, apart from any app."""

import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn, TypeVar, Unpack, overload

from ..errors import DuplicateTask, TaskDefinitionError
from ..model.duration import Duration
from ..model.queue import QueueRules
from ..runtime.batch.items import Batch
from ..runtime.handler import Gather
from . import checks
from .batching import BatchDecorator, analyse_batch, gather
from .definition import Binding, Definition, SourceLine
from .options import TaskOptions, task_settings
from .payload import shown
from .producer import Producer
from .queueing import QueueOptions, queue_rules
from .signature import HandlerSignature, analyse
from .task import Task, TaskDecorator

T = TypeVar("T")
_PLAIN = QueueRules()


class Queue:
    """A declared queue: `mail = billing.queue("mail")`."""

    __slots__ = ("_name", "_rules")

    def __init__(self, name: str, rules: QueueRules = _PLAIN) -> None:
        self._name = name
        self._rules = rules

    @property
    def name(self) -> str:
        """The queue's name in the database."""
        return self._name

    def __repr__(self) -> str:
        return f"Queue({self._name!r})"


class TaskRegistry:
    """The part of a registry that every shape builds on: tasks and queues, and the declarations of shapes."""

    def __init__(self, name: str = "") -> None:
        if name != "":
            checks.task_name(name, "the registry's name", TaskDefinitionError)
        self._registry_name = name
        self._binding = Binding(name)
        self._tasks: dict[str, Definition] = {}
        self._queues: dict[str, Queue] = {}
        self._things: dict[str, dict[str, Any]] = {}  # what shapes let users declare, by kind and name

    @property
    def task(self) -> TaskDecorator:
        """Declare a task: `@billing.task` or `@billing.task(queue="mail", max_attempts=5)`."""
        return _Declare(self, {})

    @overload
    def batch_task(self, fn: Callable[[Batch[T]], Coroutine[Any, Any, None]], /) -> Task[[T], Any]: ...
    @overload
    def batch_task(self, fn: Callable[[Batch[T]], None], /) -> Task[[T], Any]: ...
    @overload
    def batch_task(
        self, /, *, size: int = 100, wait: Duration = 0.2, **options: Unpack[TaskOptions]
    ) -> BatchDecorator: ...
    def batch_task(
        self, fn: Any = None, /, *, size: int = 100, wait: Duration = 0.2, **options: Unpack[TaskOptions]
    ) -> Any:
        """Declare a task that is called once for many jobs: `@app.batch_task(size=100, wait=0.2)` over
        `async def index(batch: Batch[Doc]) -> None`; a producer says `index.enqueue(doc)`."""
        rule = gather(size, wait, options)
        task_settings(options)

        def declare(fn: Any, /, local: Mapping[str, Any] | None = None) -> Any:
            signature = analyse_batch(fn, sys._getframe(1).f_locals if local is None else local)
            return self._declare(signature, options, rule)

        return declare if fn is None else declare(fn, sys._getframe(1).f_locals)

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> Queue:
        """Declare a queue: `billing.queue("orders", ordering="key", on_dead_letter="block")`."""
        checks.queue_name(name, TaskDefinitionError)
        rules = queue_rules(options)
        known = self._queues.setdefault(name, Queue(name, rules))
        if known._rules != rules:
            raise TaskDefinitionError(
                f"queue {name!r} is declared twice, with other {', '.join(rules.differs(known._rules))}. Declare it once"
            )
        return known

    def __repr__(self) -> str:
        return f"{type(self).__name__}({repr(self._registry_name) if self._registry_name else ''})"

    def _bind(self, producer: Producer, app_name: str) -> None:
        """Write this registry's jobs through that app from now on."""
        self._binding.producer = producer
        self._binding.app = app_name

    def _definitions(self) -> list[Definition]:
        return list(dict.fromkeys(self._tasks.values()))

    def _declared_queues(self) -> dict[str, QueueRules | None]:
        """None: a task names it, without any rules."""
        named: dict[str, QueueRules | None] = {d.settings.queue: None for d in self._tasks.values()}
        return {**named, **{name: queue._rules for name, queue in self._queues.items()}}

    def _declare_thing(self, kind: str, name: str, thing: Any, *, same: Callable[[Any], bool]) -> None:
        """One declaration of a shape. Declaring the same one twice is allowed: a module may be run again."""
        other = self._things.setdefault(kind, {}).setdefault(name, thing)
        if other is not thing and not same(other):
            raise_twice(kind, name)

    def _declare(
        self, signature: HandlerSignature, options: Mapping[str, Any], rule: Gather | None = None
    ) -> Task[Any, Any]:
        settings = task_settings(options)
        func = signature.func
        name = settings.name or self._name_of(func)
        definition = Definition(name, settings, signature, self._binding, SourceLine.of(func), rule)
        self._add(definition)
        return Task(definition)

    def _name_of(self, func: Callable[..., Any]) -> str:
        if func.__name__ == "<lambda>":
            raise TaskDefinitionError('a lambda has no name. Write a def, or task(name="...")')
        name = f"{self._registry_name}.{func.__name__}" if self._registry_name else func.__name__
        return checks.task_name(name, "the task's name", TaskDefinitionError)

    def _add(self, definition: Definition) -> None:
        for name in definition.names:
            other = self._tasks.get(name)
            if other is not None and other.place != definition.place:
                raise_duplicate(name, other, definition)
        replaced = {other for name in definition.names if (other := self._tasks.get(name)) is not None}
        self._tasks = {name: other for name, other in self._tasks.items() if other not in replaced}
        self._tasks.update(dict.fromkeys(definition.names, definition))


class _Declare:
    """The decorator behind `TaskRegistry.task`."""

    __slots__ = ("_options", "_registry")

    def __init__(self, registry: TaskRegistry, options: Mapping[str, Any]) -> None:
        self._registry = registry
        self._options = options

    def __call__(self, fn: Any = None, /, **options: Any) -> Any:
        if fn is None:
            merged = {**self._options, **options}
            task_settings(merged)
            return _Declare(self._registry, merged)
        if options:
            raise TaskDefinitionError(
                f"task takes a function or options, not both: {shown(fn)}. Write @task(...)"
            )
        local = sys._getframe(
            1
        ).f_locals  # the frame of the decorator: types defined inside a function are there
        return self._registry._declare(analyse(fn, local), self._options)


def raise_duplicate(name: str, first: Definition, second: Definition) -> NoReturn:
    """Two functions of one name."""
    raise DuplicateTask(
        f"task {name!r} is declared twice: {first.place}, and {second.place}. "
        "Give one of them another name: task(name=...)"
    )


def raise_twice(kind: str, name: str) -> NoReturn:
    """Two schedules, or whatever else a shape lets users declare, of one name."""
    raise TaskDefinitionError(
        f'there are two {kind} {name!r}. Give one of them another name: {kind.removesuffix("s")}(..., name="...")'
    )
