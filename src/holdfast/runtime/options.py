"""The options of a worker."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..errors import ConfigurationError
from ..model.queue import QueueRules
from .inflight import Processes
from .record import Recorders
from .tidy import Prune


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    leases: dict[str, float]  # queue -> lease seconds
    concurrency: int
    release: str
    until_idle: bool = False
    rules: Mapping[str, QueueRules] = field(default_factory=dict)
    prunes: Mapping[str, Prune] = field(default_factory=dict)  # of the shapes
    recorders: Recorders = field(default_factory=Recorders)  # of the shapes
    children: Callable[[], Processes | None] = lambda: None  # for suspects

    def __post_init__(self) -> None:
        if not isinstance(self.concurrency, int) or not 1 <= self.concurrency <= 10_000:
            raise ConfigurationError(f"concurrency must be between 1 and 10000, not {self.concurrency!r}")
