"""Declarations of users: `app.relay("orders", nats("nats://..."), on=["order.*"], route="shop.{type}.{key}")`."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast, get_args

from ...errors import TaskDefinitionError
from ...follow import Follower, LogRow, Start
from ...model.duration import Duration
from ...tasks.checks import period, plain_function
from ...tasks.definition import SourceLine
from ...tasks.payload import shown
from ...transport import Transport, from_url
from .message import Template
from .relay import Relay
from .spec import Policy, Spec

if TYPE_CHECKING:
    from ..events.event import Event
    from ..events.verbs import Followed

KIND = "relays"
MOST_IN_FLIGHT = 10_000  # messages in flight


class Relaying:
    """The part of a registry that declares relays."""

    if TYPE_CHECKING:
        _things: dict[str, dict[str, Any]]

        def _follow(self, follower: Follower) -> Followed: ...
        def _rows_as(self, what: str, classes: Sequence[Any]) -> Callable[[LogRow], LogRow] | None: ...

    def relay(
        self,
        name: str,
        transport: Transport | str,
        /,
        *,
        on: Sequence[Any],
        route: "str | Callable[[Event[Any]], str]",
        window: int = 1000,
        refused: Policy = "park_key",
        retry_for: Duration | None = None,
        hold: bool = True,
        start: Start = "now",
        as_version: Sequence[type] = (),
    ) -> "Followed":
        """Send events to a broker: `app.relay("orders", nats("nats://..."), on=["order.*"], route="shop.{type}.{key}")`.

        Events of a key arrive in commit order, each at least once, with the same id on every try. `route` is the
        destination: a template of {type}, {key} and {version}, or a function of the event. `window`: messages in flight, at
        most. `refused`: what happens to a message that the broker will never accept: its key waits (park_key), it is skipped
        (skip), or the relay stops. `retry_for`: how long an event may fail before it counts as refused; without it an event
        that could be accepted later is tried for ever, and its key waits for it. A new relay begins with the events that are
        committed after a worker has registered it, or as `start` says. `as_version`: event classes; older events of their
        types are upcast to them, and a newer one is refused. Without it each event is sent as it was published.
        """
        carrier = from_url(transport) if isinstance(transport, str) else transport
        if not isinstance(carrier, Transport):
            raise TaskDefinitionError(
                f"relay {name!r}: {shown(transport)} is no transport. Give nats(...), an address such as "
                '"nats://127.0.0.1:4222", or an object with open, close, publish, check and capabilities'
            )
        if isinstance(on, str | type):
            raise TaskDefinitionError(f"relay {name!r}: on must be a list, such as [{on!r}]")
        sent = self._rows_as(f"relay {name!r}", as_version)
        tried = (
            None
            if retry_for is None
            else period(retry_for, f"relay {name!r}: retry_for", TaskDefinitionError)
        )
        spec = Spec(
            carrier,
            _route(name, route),
            _window(name, window),
            _policy(name, refused),
            sent,
            retry_for=tried,
        )
        where = sys._getframe(1)
        line = where.f_lineno
        place = SourceLine(where.f_code.co_filename, line, f"{name}:{line}")  # a module may run again
        make = Follower(name, "relay", on, start, bool(hold), place, lambda cursor: Relay(spec, cursor))
        followed = self._follow(make)
        self._things.setdefault(KIND, {})[name] = spec
        return followed


def _route(name: str, route: object) -> Any:
    if isinstance(route, str):
        try:
            return Template(route)
        except TaskDefinitionError as error:
            raise TaskDefinitionError(f"relay {name!r}: {error}") from None
    if not callable(route):
        raise TaskDefinitionError(
            f"relay {name!r}: route must be a template or a function, not {shown(route)}"
        )
    plain_function(route, f"relay {name!r}: route", TaskDefinitionError)
    return route


def _window(name: str, window: object) -> int:
    if not isinstance(window, int) or isinstance(window, bool) or not 1 <= window <= MOST_IN_FLIGHT:
        raise TaskDefinitionError(
            f"relay {name!r}: window must be between 1 and {MOST_IN_FLIGHT}, not {shown(window)}"
        )
    return window


def _policy(name: str, refused: object) -> Policy:
    if refused not in get_args(Policy):
        raise TaskDefinitionError(
            f"relay {name!r}: refused must be one of {', '.join(get_args(Policy))}, not {shown(refused)}"
        )
    return cast(Policy, refused)
