"""The options of a worker."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
