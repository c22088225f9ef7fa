"""The options of webhooks, as a value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ...egress import Egress
from ...model.backoff import Backoff

if TYPE_CHECKING:
    from ..events.event import Event

Format = Literal["standard", "cloudevents"]
Oversized = Literal["truncate", "fail"]
Tenant = "str | Callable[[Event[Any]], str | None]"
Payload = "Callable[[Event[Any]], Mapping[str, Any]] | Format"

SCHEDULE = (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)  # 75.6 hours
LONGEST_STEP = 3600.0  # between two attempts at an endpoint in order, whose other events of the key wait
MOST_ATTEMPTS = 1000
DAY = 86400.0
MOST_BODY = 256 * 1024  # bytes of a request


@dataclass(frozen=True, slots=True)
class Spec:
    tenant: "str | Callable[[Event[Any]], str | None]" = "tenant"
    schedule: tuple[float, ...] = SCHEDULE
    disable_after: float = 5 * DAY
    egress: Egress = field(default_factory=Egress)
    payload: "Callable[[Event[Any]], Mapping[str, Any]] | Format" = "standard"
    retention: int = 30  # days
    keep_body: bool = False
    delivery_control: bool = False  # a reply may decide about its delivery
    oversized: Oversized = "truncate"

    @property
    def tenant_header(self) -> str:
        """The header that names an event's tenant, for the events that we publish ourselves."""
        return self.tenant if isinstance(self.tenant, str) else "tenant"

    @property
    def attempts(self) -> int:
        return len(self.schedule) + 1

    @property
    def ordered_schedule(self) -> tuple[float, ...]:
        """As long as the other one in sum, with shorter steps at its end."""
        steps = tuple(min(step, LONGEST_STEP) for step in self.schedule)
        left = sum(self.schedule) - sum(steps)
        more = min(int(left // LONGEST_STEP), MOST_ATTEMPTS - 1 - len(steps))
        return steps + (LONGEST_STEP,) * max(0, more)

    def backoff(self, *, ordered: bool) -> Backoff:
        """All of the schedule fits into the deadline, whatever the jitter and the length of its requests. A delivery that
        waited longer, because its endpoint was held, has one attempt."""
        steps = self.ordered_schedule if ordered else self.schedule
        deadline = 1.2 * sum(self.schedule) + (len(steps) + 1) * self.egress.timeout
        return Backoff(steps=steps, deadline=deadline)
