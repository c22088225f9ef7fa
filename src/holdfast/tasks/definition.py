"""A declared task as the rest of the library sees it, and the link between a registry and its app."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidOption, UnboundTask
from ..model.job import NewRow
from ..runtime.handler import Gather, Handler
from .checks import DEFAULT_LIFETIME
from .codec import Codec
from .options import TaskSettings
from .producer import Producer
from .signature import HandlerSignature


@dataclass(slots=True, eq=False)
class Binding:
    """Which app writes the jobs of a registry's tasks. The newest app that includes it wins."""

    registry: str = ""
    producer: Producer | None = None
    app: str = ""

    def require(self, task: str) -> Producer:
        if self.producer is not None:
            return self.producer
        label = f'Registry("{self.registry}")' if self.registry else "Registry()"
        variable = self.registry if self.registry.isidentifier() else "..."
        raise UnboundTask(
            f"task {task!r} belongs to {label}, which no app includes. "
            f"Add it: Holdfast(..., include=[{variable}])"
        )


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Where a function is written."""

    file: str
    line: int
    qualname: str

    @classmethod
    def of(cls, func: Callable[..., Any]) -> "SourceLine":
        inner: Any = inspect.unwrap(func)
        code = getattr(inner, "__code__", None)
        return cls(
            getattr(code, "co_filename", "<unknown>"),
            getattr(code, "co_firstlineno", 0),
            getattr(inner, "__qualname__", getattr(inner, "__name__", "?")),
        )

    def __str__(self) -> str:
        return f"{self.qualname} at {self.file}:{self.line}"


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    name: str
    settings: TaskSettings
    signature: HandlerSignature
    binding: Binding
    place: SourceLine
    gather: Gather | None = None  # set: a batch task
    codec: Codec = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        codec = Codec(self.name, self.signature, settings.version, settings.upgrade)
        object.__setattr__(self, "codec", codec)

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.settings.aliases)

    def handler(self) -> Handler:
        """The task as the runtime calls it: injected parameters by position, the decoded payload by name."""
        settings = self.settings
        return Handler(
            name=self.name,
            versions=self.codec.versions,
            func=self.signature.called,
            is_async=self.signature.is_async,
            wants_job=self.signature.wants_job,
            transaction=self.signature.transaction,
            decode=self.codec.decode,
            encode=self.codec.encode_result,
            returns_none=self.codec.returns_none,
            fingerprint=self.codec.fingerprint,
            queue=settings.queue,
            lease=settings.lease,
            timeout=settings.timeout,
            backoff=settings.retry,
            process=settings.process,
            memory_limit=settings.memory_limit,
            gather=self.gather,
            breaker=settings.breaker,
            keep=settings.keep_completed,
            masked=settings.masked,
        )

    def row(self, payload: str, values: Mapping[str, Any]) -> NewRow:
        if not values:
            s = self.settings
            return NewRow(self.name, payload, s.queue, s.version, None, s.priority, s.max_attempts)
        return new_row(self.name, payload, values, self.settings)


def new_row(task: str, payload: str, values: Mapping[str, Any], settings: TaskSettings) -> NewRow:
    """A row from an encoded payload and checked option values; task settings are the defaults."""
    key = values.get("idempotency_key")
    lifetime = values.get("idempotency_lifetime")
    if lifetime is not None and key is None:
        raise InvalidOption(
            "idempotency_lifetime needs idempotency_key. Add the key, or leave the lifetime out"
        )
    if key is not None and "replace_key" in values:
        raise InvalidOption(
            "replace_key and idempotency_key do not go together: one changes the job that waits, the other keeps it. "
            "Take one of them"
        )
    after = values.get("run_after", 0.0)
    is_delay = isinstance(after, float)
    return NewRow(
        task=task,
        payload=payload,
        queue=values.get("queue", settings.queue),
        version=settings.version,
        partition_key=values.get("partition_key"),
        priority=values.get("priority", settings.priority),
        max_attempts=values.get("max_attempts", settings.max_attempts),
        run_at=None if is_delay else after,
        delay=after if is_delay else 0.0,
        idempotency_key=key,
        idempotency_lifetime=None if key is None else lifetime or DEFAULT_LIFETIME,
        tags=values.get("tags", ()),
        metadata=values.get("metadata"),
        follow_ups=values.get("then", ()),
        parent=values.get("parent"),
        replace_key=values.get("replace_key"),
    )
