"""Declarations of users: `hooks = app.webhooks(on=["order.*"], tenant="tenant")`."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_args
from uuid import UUID

from ...db.database import Database
from ...egress import Egress, load
from ...errors import TaskDefinitionError
from ...follow import Cursor, Follower, LogRow, Start
from ...model.duration import Duration
from ...runtime.job import Job
from ...runtime.service import Service
from ...tasks import checks
from ...tasks.definition import SourceLine
from ...tasks.payload import shown
from ...tasks.producer import AppProducer
from ...tasks.registry import TaskRegistry
from ...tasks.signature import analyse
from ...tasks.taskset import TaskSet
from ...transport import MissingExtra
from .checking import CONCURRENCY
from .deliver import Deliverer
from .fan_out import FanOut
from .model import Json
from .ranges import Ranges
from .service import Upkeep
from .spec import DAY, MOST_ATTEMPTS, SCHEDULE, Format, Oversized, Spec
from .store import ORDERED, QUEUE

if TYPE_CHECKING:
    from ..events.event import Event
    from ..events.verbs import Followed

WebhooksT = TypeVar("WebhooksT")
KIND = "webhooks"
NAME = "webhooks"
TASK = "holdfast.webhook"
_SPARE = 15.0  # seconds of a job besides its request, and besides that of another whose slot it waits for
_MOST_KEPT = 30 * DAY


class WebhookDeclarations(TaskRegistry, Generic[WebhooksT]):
    """The part of a registry that declares webhooks; the assembling class supplies their type."""

    if TYPE_CHECKING:
        _webhooks: Callable[[Spec, Followed, Callable[[], Database]], WebhooksT]

        def _follow(self, follower: Follower) -> Followed: ...
        def _event_of(self, row: LogRow, era: int) -> Event[Any]: ...
        def _cloudevent_of(self, row: LogRow) -> str: ...
        def _rows_as(self, what: str, classes: Sequence[Any]) -> Callable[[LogRow], LogRow] | None: ...

    def webhooks(
        self,
        *,
        on: Sequence[Any],
        tenant: "str | Callable[[Event[Any]], str | None]" = "tenant",
        schedule: Sequence[Duration] = SCHEDULE,
        disable_after: Duration = 5 * DAY,
        egress: Egress | None = None,
        payload: "Callable[[Event[Any]], Json] | Format" = "standard",
        retention: Duration = 30 * DAY,
        keep_body: bool = False,
        start: Start = "now",
        as_version: Sequence[type] = (),
        oversized: Oversized = "truncate",
        delivery_control: bool = False,
    ) -> WebhooksT:
        """Send events to the endpoints of tenants: `hooks = app.webhooks(on=["order.*"], tenant="tenant")`.

        `tenant`: the event header that names the tenant, or a function of the event; None: the event has no tenant.
        `schedule`: the pauses after each failed attempt. `disable_after`: how long an endpoint may only fail. `egress`:
        which addresses may be called. `payload`: the body: "standard", "cloudevents", or a function of the event.
        `retention`: how long attempts and ended deliveries are kept. `keep_body`: also keep the first 4 KiB of each reply.
        `as_version`: event classes; older events of their types are upcast to them, and the delivery of a newer one fails.
        `oversized`: what is sent instead of a body of more than 256 KiB: its type, time and id ("truncate"), or nothing, and
        the delivery fails ("fail"). `delivery_control`: a reply that is no success may end its delivery, or disable its
        endpoint, by the header `webhook-delivery`.
        """
        if isinstance(on, str | type):
            raise TaskDefinitionError(f"webhooks: on must be a list, such as [{on!r}]")
        spec = _spec(tenant, schedule, disable_after, egress, payload, retention, keep_body)
        spec = _with(spec, oversized, delivery_control)
        where = sys._getframe(1)
        place = SourceLine(where.f_code.co_filename, where.f_lineno, f"{NAME}:{where.f_lineno}")

        def fan_out(cursor: Cursor) -> FanOut:
            return FanOut(spec, self._database_of_app, cursor)

        followed = self._follow(Follower(NAME, "webhooks", on, start, True, place, fan_out))
        sent = self._rows_as("webhooks", as_version)
        deliverer = Deliverer(spec, self._database_of_app, self._cloudevent_of, self._event_of, sent)

        async def deliver(job: Job, endpoint: str, event: str) -> None:
            await deliverer.deliver(job, UUID(endpoint), UUID(event))

        limit = 2 * spec.egress.timeout + _SPARE
        self.queue(QUEUE, fair=True, key_concurrency=CONCURRENCY)  # an endpoint's own is a rule of its key
        self.queue(ORDERED, ordering="key", on_dead_letter="park")
        retry = spec.backoff(ordered=False)
        options = {
            "name": TASK,
            "queue": QUEUE,
            "max_attempts": spec.attempts,
            "timeout": limit,
            "retry": retry,
        }
        self._declare(analyse(deliver, locals()), options)
        self._things.setdefault(KIND, {})[NAME] = (spec, deliverer)
        return self._webhooks(spec, followed, self._database_of_app)

    def _database_of_app(self) -> Database:
        return cast(AppProducer, self._binding.require(TASK)).database


def services(database: Database, tasks: TaskSet) -> list[Service]:
    found: list[Service] = []
    for spec, deliverer in tasks.declared(KIND).values():
        with contextlib.suppress(MissingExtra):  # then each delivery names the missing extra
            load()  # now, and not while jobs run
        found += [Upkeep(database, spec, deliverer), Ranges(database, spec)]
    return found


def _with(spec: Spec, oversized: Any, delivery_control: Any) -> Spec:
    if oversized not in get_args(Oversized):
        raise TaskDefinitionError(
            f"webhooks: oversized must be {' or '.join(map(repr, get_args(Oversized)))}, not {shown(oversized)}"
        )
    if not isinstance(delivery_control, bool):
        raise TaskDefinitionError(
            f"webhooks: delivery_control must be True or False, not {shown(delivery_control)}"
        )
    return replace(spec, oversized=oversized, delivery_control=delivery_control)


def _spec(
    tenant: Any, schedule: Any, disable_after: Any, egress: Any, payload: Any, retention: Any, keep_body: Any
) -> Spec:
    fail = TaskDefinitionError
    if not callable(tenant):
        checks.key(tenant, "webhooks: tenant", fail, empty=False)
    if isinstance(schedule, str) or not isinstance(schedule, Sequence) or len(schedule) >= MOST_ATTEMPTS:
        raise fail(
            f'webhooks: schedule must be a list of pauses such as [5, "5m", "2h"], not {shown(schedule)}'
        )
    steps = tuple(checks.period(one, f"step {n} of schedule", fail) for n, one in enumerate(schedule, 1))
    if not steps:
        raise fail("webhooks: schedule must have one pause at least, and is empty")
    if egress is not None and not isinstance(egress, Egress):
        raise fail(f"webhooks: egress must be an Egress(...), not {shown(egress)}")
    if not callable(payload) and payload not in ("standard", "cloudevents"):
        raise fail(f'webhooks: payload must be "standard", "cloudevents" or a function, not {shown(payload)}')
    checks.plain_function(tenant, "webhooks: tenant", fail)
    checks.plain_function(payload, "webhooks: payload", fail)
    kept = checks.period(retention, "retention", fail)
    if not DAY <= kept <= _MOST_KEPT:
        raise fail(f"webhooks: retention must be from 1 to 30 days, not {shown(retention)}")
    if not isinstance(keep_body, bool):
        raise fail(f"webhooks: keep_body must be True or False, not {shown(keep_body)}")
    after = checks.period(disable_after, "disable_after", fail)
    whose: Any = tenant
    body: Any = payload
    return Spec(whose, steps, after, egress or Egress(), body, int(-(-kept // DAY)), keep_body)
