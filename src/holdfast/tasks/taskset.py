"""TaskSet: every task an app knows, from all its registries, as the runtime asks for them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import TaskDefinitionError
from ..model.outcome import Outcome
from ..model.queue import QueueRules
from ..runtime.around import Around, current
from ..runtime.handler import Handler
from ..runtime.job import Job
from .definition import Definition
from .registry import TaskRegistry, raise_duplicate, raise_twice


class TaskSet:
    """A snapshot of the registries' tasks, with the app's hooks around each. Implements runtime.handler.Handlers."""

    __slots__ = ("_definitions", "_handlers", "_queues", "_things", "around")

    def __init__(self, registries: Iterable[TaskRegistry], around: Around | None = None) -> None:
        self.around = around or Around()
        self._definitions: dict[str, Definition] = {}
        self._queues: dict[str, QueueRules] = {}
        self._things: dict[str, dict[str, Any]] = {}
        for registry in registries:
            for name, rules in registry._declared_queues().items():
                self._queue(name, rules)
            for definition in registry._definitions():
                self._add(definition)
            for kind, things in registry._things.items():
                self._add_things(kind, things)
        self._handlers = {
            name: handler
            for definition in set(self._definitions.values())
            for handler in [_hooked(definition.handler(), self.around)]
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

    def declared(self, kind: str) -> Mapping[str, Any]:
        """The declarations of a shape in the code, by name."""
        return self._things.get(kind, {})

    def check(self) -> None:
        """Build every codec now; TaskDefinitionError names a parameter whose type has no JSON form."""
        for definition in self._definitions.values():
            definition.codec.check()

    def _add_things(self, kind: str, things: Mapping[str, Any]) -> None:
        known = self._things.setdefault(kind, {})
        for name, thing in things.items():
            if known.setdefault(name, thing) is not thing:
                raise_twice(kind, name)

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


def _hooked(handler: Handler, around: Around) -> Handler:
    """With the hooks around each call. A handler that drives its job itself finds them in its context."""
    if not around:
        return handler
    drive = handler.drive
    if drive is None:
        return replace(handler, func=around.wrap(handler.func, is_async=handler.is_async))

    async def with_hooks(job: Job, arguments: dict[str, Any]) -> Outcome:
        current.set(around)  # of this task's context, which ends with the task
        return await drive(job, arguments)

    return replace(handler, drive=with_hooks)
