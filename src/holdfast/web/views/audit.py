"""The audit: actor, act, time, place and reason."""

from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Cell, Filter, Link, Page, PageRequest, Problem, Row, Secret, Table, View
from holdfast.store.audit import AuditLine
from holdfast.web.filters import check_no_secret, text
from holdfast.web.shown import number

if TYPE_CHECKING:
    from holdfast.web.site import Site

LINES = 50
FILTERS = (Filter("actor", "Who"), Filter("verb", "Did"), Filter("target", "To what"))
HEADS = ("When", "Who", "Via", "Did", "How many#", "To what~", "Was", "Is", "Why", "Database role")


def page(site: "Site") -> Page:
    def load(asked: PageRequest) -> Procedure[View]:
        said = text(asked.query, "before")
        if said is not None and not (said.isascii() and said.isdigit() and len(said) < 19):
            raise ConfigurationError(f"before={said[:40]!r} is not the number of an entry in the audit")
        wanted = {name: text(asked.query, name) for name in ("actor", "verb", "target")}
        if (target := wanted["target"]) is not None:
            check_no_secret(target, site.masked_of(""), "entry")
        found = yield from Operator.list_audit.procedure(
            before=None if said is None else int(said),
            limit=LINES,
            actor=wanted["actor"],
            action=wanted["verb"],
            target=wanted["target"],
        )
        kept = {name: value for name, value in wanted.items() if value is not None}
        empty = "Nothing of that kind." if kept else "Nobody has changed anything yet."
        table = Table(HEADS, [_row(line) for line in found.entries], "Audit", "the last first", empty)
        more = None if found.next is None else {**kept, "before": str(found.next)}
        options = [(f"--{name}", value) for name, value in kept.items()]
        words = ("audit", *(word for option in options for word in option))
        words += ("--before", said) if said else ()
        cut = f"looked back to entry {found.next}" if found.cut else ""
        return View([table], found.entries, words, more=more, cut=cut)

    return Page(
        "audit", "Audit", load, "System", "audit", filters=FILTERS, searches=("target",), takes=("before",)
    )


def entries_of(target: str) -> Link:
    """The acts on one item, for its own page."""
    return Link("in the audit", "audit", {"target": target})


def _row(line: AuditLine) -> Row:
    via = " ".join(word for word in (line.surface, line.address) if word)
    was, now = (Secret(change, 80) if change else "" for change in (line.before, line.after))
    why = Problem(line.reason, words=True) if line.reason else ""
    what = Secret(line.selection, 120)
    who, did = (
        Link(line.actor, "audit", {"actor": line.actor}),
        Link(line.action, "audit", {"verb": line.action}),
    )
    count: Cell = line.count
    if line.operation is not None:
        count = Link(number(line.count), f"operations/{line.operation}")
    return Row((line.at, who, via, did, count, what, was, now, why, line.role or ""))
