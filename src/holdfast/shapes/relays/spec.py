"""The options of a relay, as a value."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ...follow import LogRow
from ...model.backoff import Backoff
from ...transport import Transport
from .message import Route, Template

Policy = Literal["park_key", "skip", "stop"]


@dataclass(frozen=True, slots=True)
class Spec:
    transport: Transport
    route: Template | Route
    window: int = 1000  # messages in flight, at most
    refused: Policy = "park_key"
    sent: Callable[[LogRow], LogRow] | None = None  # the version of an event that is sent
    retry: Backoff = field(
        default_factory=lambda: Backoff(first=0.1, cap=30.0)
    )  # of a key, of the destination
    retry_for: float | None = None  # seconds that an event may fail; None: no limit
    spill_after: float = 30.0  # seconds that a failing key may hold up the position
    most_ahead: int = 10_000  # positions that others may get ahead of it
    every: float = 0.05  # seconds between two moves of the position, while messages flow
