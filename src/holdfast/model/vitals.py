"""How a worker's process is: what it says of itself with its heartbeat."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Vitals:
    memory: int | None  # bytes that are resident; None: this system does not say
    load: float | None  # of its machine, over the last minute
    lag: float  # seconds that its event loop took to turn to something new, the worst since the last report
    connections: int  # to the database, that are open

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_vitals(found: Mapping[str, Any] | None) -> Vitals | None:
    """As stored; None: it did not say, or a release that says it otherwise did."""
    try:
        return None if found is None else Vitals(**found)
    except TypeError:
        return None
