"""Is everything around the jobs as it should be, and what fixes it?"""

from typing import TYPE_CHECKING

from holdfast.operate.doctor.order import worst_first
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Page, PageRequest, View
from holdfast.web.findings import shown_findings
from holdfast.web.parts import Missing, part
from holdfast.web.views.drawn import Drawn, later

if TYPE_CHECKING:
    from holdfast.web.site import Site


def page(site: "Site") -> Page:
    def load(asked: PageRequest) -> Procedure[View]:
        diagnosis = yield from later(site.diagnosis)
        stats = yield from part("What takes the space", Operator.stats.procedure(minutes=60))
        context = {
            "findings": shown_findings(worst_first(diagnosis.findings), site.shell),
            "fine": [check for check in diagnosis.checks if not check.findings and check.not_checked is None],
            "not_checked": [check for check in diagnosis.checks if check.not_checked is not None],
            "looked": site.snapshots.age("doctor") or 0.0,
            "stats": None if isinstance(stats, Missing) else stats,
            "missing": [stats] if isinstance(stats, Missing) else [],
        }
        return Drawn((), diagnosis, ("doctor",), template="doctor.html", context=context)

    return Page("doctor", "Doctor", load, "System", "doctor")
