"""Who did what, when?"""

from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Asked, Page, Row, Secret, Table, View
from holdfast.web.filters import text

if TYPE_CHECKING:
    from holdfast.web.site import Site

LINES = 50


def page(site: "Site") -> Page:
    def load(asked: Asked) -> Procedure[View]:
        said = text(asked.query, "before")
        if said is not None and not (said.isascii() and said.isdigit() and len(said) < 19):
            raise ConfigurationError(f"before={said[:40]!r} is not the number of an entry in the audit")
        before = None if said is None else int(said)
        found = yield from Operator.list_audit.procedure(before=before, limit=LINES)
        rows = [
            Row((line.at, line.actor, line.action, line.count, Secret(line.selection, 120), line.role or ""))
            for line in found
        ]
        heads = ("When", "Who", "Did", "How many#", "To what~", "Database role")
        table = Table(heads, rows, "Audit", "the last first", "Nobody has changed anything yet.")
        more = {"before": str(found[-1].id)} if len(found) == LINES else None
        words = ("audit", *(("--before", said) if said else ()))
        return View([table], found, words, more=more)

    return Page("audit", "Audit", load, "System", "audit")
