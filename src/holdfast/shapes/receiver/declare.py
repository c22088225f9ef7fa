"""What users declare: `@app.receive("stripe", Invoice, verify=...)` and `@app.consume("invoices", broker, Invoice)`."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin, overload

from ...db.transaction import AsyncTransaction, Transaction
from ...errors import TaskDefinitionError
from ...model.duration import Duration
from ...runtime.job import Job
from ...tasks import checks
from ...tasks.convert import type_name
from ...tasks.definition import Binding, SourceLine
from ...tasks.payload import shown
from ...tasks.registry import TaskRegistry
from ...tasks.signature import HandlerSignature, analyse
from ...tasks.task import Task
from ...tasks.taskset import TaskSet
from ...transport import Source
from .intake import Intake
from .message import MessageConverter, ReceivedMessage
from .parse import KeyTemplate
from .receiver import Receiver
from .store import Target
from .verify import Verifier

KIND = "receivers"
MAX_BYTES = 1024 * 1024
KEEP_IDS = 30 * 86400.0
PATIENCE = 2.0
_LEAST_KEPT = 3600.0
_MOST_KEPT = 100 * 365 * 86400.0

T = TypeVar("T")
OnMisfit = Literal["park", "refuse"]
Poison = Literal["dead_letter", "dead", "stop"]


@dataclass(frozen=True, slots=True)
class Declared:
    """A source as the code declares it."""

    source: str
    place: SourceLine
    intake: Intake
    broker: Source | None = None  # None: messages come over HTTP
    poison: Poison = "dead_letter"
    max_depth: int | None = None  # of its queue: it is not read while the queue has this many jobs


class ReceiveDecorator(Protocol[T]):
    """The decorator of `@app.receive(...)` and `@app.consume(...)`: injected parameters before or after the message."""

    @overload
    def __call__(self, fn: Callable[[ReceivedMessage[T]], object], /) -> Receiver[T]: ...
    @overload
    def __call__(self, fn: Callable[[Job, ReceivedMessage[T]], object], /) -> Receiver[T]: ...
    @overload
    def __call__(self, fn: Callable[[AsyncTransaction, ReceivedMessage[T]], object], /) -> Receiver[T]: ...
    @overload
    def __call__(self, fn: Callable[[Transaction, ReceivedMessage[T]], object], /) -> Receiver[T]: ...
    @overload
    def __call__(
        self, fn: Callable[[Job, AsyncTransaction, ReceivedMessage[T]], object], /
    ) -> Receiver[T]: ...
    @overload
    def __call__(self, fn: Callable[[Job, Transaction, ReceivedMessage[T]], object], /) -> Receiver[T]: ...
    @overload
    def __call__(self, fn: Callable[[ReceivedMessage[T], Job], object], /) -> Receiver[T]: ...
    @overload
    def __call__(self, fn: Callable[[ReceivedMessage[T], AsyncTransaction], object], /) -> Receiver[T]: ...
    @overload
    def __call__(self, fn: Callable[[ReceivedMessage[T], Transaction], object], /) -> Receiver[T]: ...
    @overload
    def __call__(
        self, fn: Callable[[ReceivedMessage[T], Job, AsyncTransaction], object], /
    ) -> Receiver[T]: ...
    @overload
    def __call__(self, fn: Callable[[ReceivedMessage[T], Job, Transaction], object], /) -> Receiver[T]: ...


class Receiving(TaskRegistry):
    """The part of a registry that declares sources of messages."""

    def receive(
        self,
        source: str,
        payload: type[T],
        /,
        *,
        verify: Verifier,
        queue: str = "inbox",
        key: str | None = None,
        max_bytes: int = MAX_BYTES,
        keep_ids: Duration = KEEP_IDS,
        max_attempts: int = 5,
        misfit: OnMisfit = "park",
        patience: Duration = PATIENCE,
    ) -> ReceiveDecorator[T]:
        """Take webhooks: `@app.receive("stripe", Invoice, verify=Stripe(SECRETS))` over
        `async def paid(message: ReceivedMessage[Invoice])`, then `mount("/hooks/stripe", paid.asgi)`.

        The sender gets 2xx when the job is committed; a message that is sent again makes no second job while its id is
        kept. A message that does not fit its type becomes a dead letter; with `misfit="refuse"` the sender gets 422."""
        where = f"receive({source!r})"
        if not callable(getattr(verify, "verify", None)):
            raise TaskDefinitionError(
                f"{where}: verify must be a verifier such as Stripe(SECRETS), not {shown(verify)}"
            )
        _one_of(where, "misfit", misfit, ("park", "refuse"))
        waits = checks.period(patience, "patience", TaskDefinitionError)

        def declare(fn: Any, /) -> Receiver[Any]:
            made, task = self._source(
                where, fn, sys._getframe(1).f_locals, source, payload, key, max_bytes, keep_ids,
                {"queue": queue, "max_attempts": max_attempts}, misfit,
            )  # fmt: skip
            self._declare_source(made)
            return Receiver(task, self._binding, made.intake, verify, waits)

        return declare

    def consume(
        self,
        source: str,
        broker: Source,
        payload: type[T],
        /,
        *,
        queue: str = "inbox",
        key: str | None = None,
        max_bytes: int = MAX_BYTES,
        keep_ids: Duration = KEEP_IDS,
        max_attempts: int = 5,
        poison: Poison = "dead_letter",
        max_depth: int | None = None,
    ) -> ReceiveDecorator[T]:
        """Take messages of a broker: `@app.consume("orders", nats_source(URL, stream="ORDERS", durable="shop"), Order)`.

        Every worker of the app reads it. A message is acknowledged when its job is committed. One that cannot be read or
        does not fit its type becomes a dead letter; with `poison="stop"` the worker stops reading before it. While its queue
        has `max_depth` jobs, messages stay in the broker."""
        where = f"consume({source!r})"
        missing = [n for n in ("open", "close", "receive", "ack", "release") if not hasattr(broker, n)]
        if missing:
            raise TaskDefinitionError(
                f"{where}: {shown(broker)} is no source of messages: it has no {missing[0]}()"
            )
        _one_of(where, "poison", "dead_letter" if poison == "dead" else poison, ("dead_letter", "stop"))
        if max_depth is not None:
            checks.integer(max_depth, "max_depth", 1, 1_000_000, TaskDefinitionError)

        def declare(fn: Any, /) -> Receiver[Any]:
            made, task = self._source(
                where, fn, sys._getframe(1).f_locals, source, payload, key, max_bytes, keep_ids,
                {"queue": queue, "max_attempts": max_attempts}, "park",
            )  # fmt: skip
            self._declare_source(Declared(source, made.place, made.intake, broker, poison, max_depth))
            return Receiver(task, self._binding, made.intake, _Nobody(), PATIENCE)

        return declare

    def _source(
        self, where: str, fn: Any, local: dict[str, Any], source: str, payload: Any, key: str | None,
        max_bytes: int, keep_ids: Duration, options: dict[str, Any], misfit: OnMisfit,
    ) -> tuple[Declared, Task[Any, Any]]:  # fmt: skip
        checks.task_name(source, "the name of a source", TaskDefinitionError)
        checks.integer(max_bytes, "max_bytes", 1, 1 << 30, TaskDefinitionError)
        keep = checks.period(keep_ids, "keep_ids", TaskDefinitionError)
        if not _LEAST_KEPT <= keep <= _MOST_KEPT:
            raise TaskDefinitionError(
                f"{where}: keep_ids must be from 1 hour to 100 years, and longer than the sender retries, not {keep:g} s"
            )
        template = None if key is None else KeyTemplate(key, where)
        signature = analyse(fn, local, subject_first=True)
        parameter = _message_parameter(signature, payload)
        task = self._declare(signature, options)
        task.definition.codec.check()
        s = task.definition.settings
        target = Target(source, task.name, s.queue, s.version, s.priority, s.max_attempts, keep)
        converter = MessageConverter(payload)
        intake = Intake(target, parameter, converter, template, max_bytes, misfit)
        return Declared(source, SourceLine.of(fn), intake), task

    def _declare_source(self, made: Declared) -> None:
        def same(other: Declared) -> bool:
            """A module may run again: the newer function at one place counts."""
            found = (made.place.file, made.place.qualname) == (other.place.file, other.place.qualname)
            if found:
                self._things[KIND][made.source] = made
            return found

        self._declare_thing(KIND, made.source, made, same=same)


class _Nobody:
    """Headers of HTTP do not exist in a broker."""

    def verify(self, headers: Any, body: bytes, now: Any) -> Any:
        from ...errors import VerificationFailed

        raise VerificationFailed


def declared(tasks: TaskSet) -> list[Declared]:
    """Every source that the code declares."""
    return list(tasks.declared(KIND).values())


def _one_of(where: str, what: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise TaskDefinitionError(f"{where}: {what} must be one of {', '.join(known)}, not {shown(value)}")


def _message_parameter(signature: HandlerSignature, payload: Any) -> str:
    """The one parameter that is no Job and no transaction: the message."""
    function = signature.func.__name__
    params = list(signature.params)
    hint = signature.hint(params[0]) if len(params) == 1 else None
    wanted = f"ReceivedMessage[{type_name(payload)}]"
    if hint is not ReceivedMessage and get_origin(hint) is not ReceivedMessage:
        raise TaskDefinitionError(
            f"{function}: it takes one message, and beside it only what is injected. "
            f"Write: def {function}(message: {wanted})"
        )
    if get_args(hint) and get_args(hint)[0] != payload:
        raise TaskDefinitionError(
            f"{function}: the message is annotated {type_name(hint)}, and its source has {wanted}. Make them the same"
        )
    return params[0]


__all__ = ["Binding", "Declared", "ReceiveDecorator", "Receiving", "declared"]
