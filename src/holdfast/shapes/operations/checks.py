"""Problems of operations: no worker runs them, or none can."""

from collections.abc import Iterator

from ...operate.advice import advise
from ...operate.doctor.finding import Check, Finding, Patient
from ...operate.operations import SILENCE
from ...operate.wording import cut, listed, several
from ...store.operations import OPEN, list_operations

_LOOK = 100
_SHOWN = 20  # commands that are printed


def check_operations(p: Patient) -> Iterator[Finding]:
    """The next worker takes up one that a worker has just left."""
    found = p.probe.look(list_operations(None, OPEN, _LOOK))
    stuck = [
        o for o in found if o.fault is not None or (o.state == "waiting" and o.age_seconds > 4 * SILENCE)
    ]
    if stuck:
        what = f"{several(len(stuck), 'operation')} that no worker runs"
        fix = [advise("operation", verb="run", id=str(o.id)) for o in stuck[:_SHOWN]]
        otherwise = [advise("operation", verb="stop", id=str(o.id)) for o in stuck[:_SHOWN]]
        details = [
            f"{o.verb} {o.id} of {cut(o.actor)}: {cut(o.fault or 'nobody takes it up')}" for o in stuck
        ]
        yield Finding("stuck_operation", "warning", what, fix, listed(details), otherwise)


CHECKS = (
    Check(
        "operations",
        "acts over many that operators began are carried on",
        ("stuck_operation",),
        check_operations,
    ),
)
