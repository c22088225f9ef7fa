"""The vital signs of a worker's process, as it reports them with its heartbeat."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Vitals:
    memory: int | None  # resident bytes; None: this system does not report them
    load: float | None  # of its machine, over the last minute
    lag: float  # seconds that its event loop took to turn to something new, the worst since the last report
    connections: int  # to the database, that are open

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_vitals(found: Mapping[str, Any] | None) -> Vitals | None:
    """As stored; None: not reported, or in another release's form."""
    try:
        return None if found is None else Vitals(**found)
    except TypeError:
        return None
