"""Undo: an act is taken back by its entry in the audit, in the request or, of many jobs, by the workers."""

from holdfast.errors import ConfigurationError
from holdfast.operate.bulk import Done
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.operate.wording import several
from holdfast.pages import Act, ActResult, Field, Given, Offer
from holdfast.web.filters import whole_number
from holdfast.web.shown import number

AT_ONCE = 1000  # jobs that are put back while the browser waits


def undo_of(entry: int | None) -> Offer | None:
    return None if entry is None else Offer("undo", {"entry": str(entry)}, "Undo")


def undo_of_named(entry: int | None) -> Procedure[Offer | None]:
    """Of an act that is undone only if its entry names the jobs."""
    if entry is None:
        return None
    lines = (yield from Operator.list_audit.procedure(before=entry + 1, limit=1)).entries
    return undo_of(entry) if lines and lines[0].id == entry and lines[0].selection.get("ids") else None


def _undo(given: Given) -> Procedure[ActResult]:
    entry = whole_number(given, "entry")
    if entry is None or not 0 < entry < 2**63 - 1:
        raise ConfigurationError(f"entry={given['entry'][:40]!r} is not the number of an entry in the audit")
    lines = (yield from Operator.list_audit.procedure(before=entry + 1, limit=1)).entries
    if lines and lines[0].id == entry and lines[0].count > AT_ONCE:
        begun = yield from Operator.begin_undo.procedure(entry)
        sentence = f"{number(begun.total)} jobs: workers undo it now, also when this page is closed."
        return ActResult(sentence, begun, f"operations/{begun.id}")
    return _said((yield from Operator.undo.procedure(entry)))


def _said(done: Done) -> ActResult:
    """A pause is of a queue or a task; all else is of jobs."""
    what = {"queue resume": "The queue is resumed.", "task resume": "The task is resumed."}.get(done.action)
    left = [f"{n:,} left alone: {why.text}" for why, n in done.left.items()]
    sentence = what or f"{several(done.count, 'job')} as before."
    data = {"count": done.count, "results": done.results, "audit": done.audit}
    return ActResult(" ".join([sentence, *left]), data)


UNDO = Act("undo", "Undo", _undo, (Field("entry"),), lambda g: ("undo", g["entry"]), at_once=True)
