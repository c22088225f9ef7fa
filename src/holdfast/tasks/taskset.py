"""TaskSet: every task an app knows, from all its registries, as the runtime asks for them."""

from collections.abc import Iterable

from ..errors import TaskDefinitionError
from ..model.queue import QueueRules
from ..model.schedule import Spec
from ..runtime.handler import Handler
from .definition import Definition
from .registry import Registry, raise_duplicate, raise_same_schedule


class TaskSet:
    """A snapshot of the registries' tasks. Implements runtime.handler.Handlers."""

    __slots__ = ("_definitions", "_handlers", "_queues", "_schedules")

    def __init__(self, registries: Iterable[Registry]) -> None:
        self._definitions: dict[str, Definition] = {}
        self._queues: dict[str, QueueRules] = {}
        self._schedules: dict[str, Spec] = {}
        for registry in registries:
            for name, rules in registry._declared_queues().items():
                self._queue(name, rules)
            for definition in registry._definitions():
                self._add(definition)
            for name, spec in registry._schedules.items():
                if self._schedules.setdefault(name, spec) is not spec:
                    raise_same_schedule(name)
        self._handlers = {
            name: handler
            for definition in set(self._definitions.values())
            for handler in [definition.handler()]
            for name in definition.names
        }

    def find(self, task: str, version: int) -> Handler | None:
        """The handler of a task name or alias, when it takes that payload version."""
        handler = self._handlers.get(task)
        return handler if handler is not None and version in handler.versions else None

    def handlers(self) -> list[Handler]:
        """Every handler once."""
        return [self._handlers[name] for name, d in self._definitions.items() if name == d.name]

    def known(self) -> list[tuple[str, int]]:
        """Every (task name or alias, payload version) that can be run here."""
        return sorted(
            (name, version) for name, handler in self._handlers.items() for version in handler.versions
        )

    def definition(self, task: str) -> Definition | None:
        """The declaration of a task name or alias."""
        return self._definitions.get(task)

    def queues(self) -> list[str]:
        """Every queue that a task or `.queue()` names."""
        return sorted(self._queues)

    def queue_rules(self) -> dict[str, QueueRules]:
        """The same with their rules."""
        return {name: self._queues[name] for name in self.queues()}

    def schedules(self) -> list[Spec]:
        """Every schedule that the code declares."""
        return list(self._schedules.values())

    def check(self) -> None:
        """Build every codec now; TaskDefinitionError names a parameter whose type has no JSON form."""
        for definition in self._definitions.values():
            definition.codec.check()
        for spec in self._schedules.values():
            rules = self._queues.get(spec.row.queue)
            if rules is not None and rules.keyed and spec.row.partition_key is None:
                raise TaskDefinitionError(
                    f"schedule {spec.name!r}: queue {spec.row.queue!r} is claimed key by key, and its job has no key. "
                    'Write schedule(..., task.using(partition_key="...").job())'
                )

    def _queue(self, name: str, rules: QueueRules | None) -> None:
        other = self._queues.get(name)
        if rules is None:
            self._queues.setdefault(name, QueueRules())
        elif other in (None, QueueRules()):
            self._queues[name] = rules
        elif other is not None and rules != QueueRules() and other != rules:
            raise TaskDefinitionError(
                f"queue {name!r} is declared twice, with other {', '.join(rules.differs(other))}. Declare it once"
            )

    def _add(self, definition: Definition) -> None:
        for name in definition.names:
            other = self._definitions.get(name)
            if other is not None and other is not definition:
                raise_duplicate(name, other, definition)
            self._definitions[name] = definition
