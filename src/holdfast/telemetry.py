"""Events first, logs second: code emits events, and logs, metrics and tests subscribe.

An event is a name and fields. Subscribers run where the event was emitted; one that raises is reported once
to the standard log and never disturbs the work.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

log = logging.getLogger("holdfast")

job_context: ContextVar[Mapping[str, Any]] = ContextVar("holdfast_job", default=MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    level: int = logging.INFO


Subscriber = Callable[[Event], None]
_subscribers: list[Subscriber] = []
_by_name: dict[str, list[Subscriber]] = {}  # those that want some events alone


def subscribe(subscriber: Subscriber, *names: str) -> Callable[[], None]:
    """Call `subscriber` with every event from now on, or with those of these names; the returned function ends it. Events of
    each job cost the worker less where nobody wants all of them."""
    lists = [_by_name.setdefault(name, []) for name in names] or [_subscribers]
    for subscribers in lists:
        subscribers.append(subscriber)

    def unsubscribe() -> None:
        for subscribers in lists:
            with contextlib.suppress(ValueError):
                subscribers.remove(subscriber)

    return unsubscribe


def emit(name: str, *, level: int = logging.INFO, **fields: Any) -> None:
    event = Event(name, fields, level)
    for subscriber in (*_subscribers, *_by_name.get(name, ())):
        try:
            subscriber(event)
        except Exception:
            log.warning("a telemetry subscriber failed on %s", name, exc_info=True)


def audible(level: int, name: str | None = None) -> bool:
    """Whether anybody listens to events of this level and name: otherwise none is built. None: of any name."""
    some = any(_by_name.values()) if name is None else bool(_by_name.get(name))
    return some or len(_subscribers) > 1 or _subscribers != [log_events] or log.isEnabledFor(level)


_held_back: list[Callable[[], bool]] = []


def hold_back(when: Callable[[], bool]) -> None:
    """Log records emitted while this is true stay out of the log of Holdfast's own processes."""
    _held_back.append(when)


def held_back() -> bool:
    return any(when() for when in _held_back)


@contextlib.contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Fields of the running job; log lines written inside carry them."""
    token = job_context.set(MappingProxyType({**job_context.get(), **fields}))
    try:
        yield
    finally:
        job_context.reset(token)


def _printable(value: Any) -> str:
    """No value may drive a terminal or forge a second line."""
    text = str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def log_events(event: Event) -> None:
    """The default subscriber: every event becomes a record of the standard `holdfast` logger."""
    if log.isEnabledFor(event.level):
        fields = {**job_context.get(), **event.fields}
        text = " ".join(f"{k}={_printable(v)}" for k, v in fields.items() if k != "trace")
        log.log(event.level, "%s %s", event.name, text, extra={"event": event.name, "fields": fields})


subscribe(log_events)
