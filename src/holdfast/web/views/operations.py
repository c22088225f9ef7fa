"""How far are acts over many that were left to the workers?"""

from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.errors import ConfigurationError
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import (
    Block,
    Cell,
    Facts,
    Filter,
    Link,
    Offer,
    Page,
    PageRequest,
    Problem,
    Row,
    Secret,
    State,
    Table,
    Tone,
    Use,
    View,
)
from holdfast.store.operations import OPEN, STATES, Operation
from holdfast.web.filters import text
from holdfast.web.shown import number

if TYPE_CHECKING:
    from holdfast.web.site import Site

_HEADS = ("Operation", "Did", "State", "Looked at", "A second#", "Changed#", "Who", "Begun", "Note~")
_TONES: dict[str, Tone] = {
    "waiting": "due",
    "running": "run",
    "done": "done",
    "stopped": "held",
    "failed": "dead",
}
_ABOUT = (
    "An act over more than 1,000 jobs is left to the workers. It continues when the browser is closed, shows how far it "
    "is, and can be stopped."
)


def pages(site: "Site") -> list[Page]:
    filters = (Filter("state", "State", STATES),)
    return [
        Page(
            "operations",
            "Operations",
            _list,
            "System",
            "play",
            _ABOUT,
            filters=filters,
            takes=("after",),
            live=2,
        ),
        Page("operations/{id}", "Operation", _one, live=1),
    ]


def _list(asked: PageRequest) -> Procedure[View]:
    state, after = text(asked.query, "state"), text(asked.query, "after")
    states = None if state is None else [state]
    found = yield from Operator.list_operations.procedure(states=states, after=after)
    rows = [_row(operation) for operation in found.operations]
    table = Table(_HEADS, rows, "Operations", "the last first", "Nothing was left to the workers yet.")
    more = None
    if found.next is not None:
        more = {**({} if state is None else {"state": state}), "after": found.next}
    words = ("operations", "list", *(("--state", state) if state else ()))
    return View([table], found, words, more=more)


def _row(operation: Operation) -> Row:
    return Row(
        (
            Link(str(operation.id)[:8], f"operations/{operation.id}", code=True),
            operation.verb,
            _state(operation),
            _progress(operation),
            None if operation.per_second is None else round(operation.per_second, 1),
            operation.done,
            operation.actor,
            operation.created_at,
            Problem(operation.fault or operation.reason) if operation.fault or operation.reason else "",
        ),
        _offers(operation),
        key=str(operation.id),
    )


def _one(asked: PageRequest) -> Procedure[View]:
    operation = yield from Operator.find_operation.procedure(operation_id(asked.path["id"]))
    facts: list[tuple[str, Cell]] = [
        ("Did", operation.verb),
        ("State", _state(operation)),
        ("To what", Secret({**operation.selection, **operation.options}, 400)),
        ("Looked at", _progress(operation)),
        ("Changed", operation.done),
        ("A second", None if operation.per_second is None else round(operation.per_second, 1)),
        ("Who", f"{operation.actor} ({operation.surface})"),
        ("Begun", operation.created_at),
        ("Ended", operation.ended_at),
        ("Runs at", operation.runner),
        ("Why", Problem(operation.reason, words=True) if operation.reason else None),
        ("Fault", Problem(operation.fault) if operation.fault else None),
    ]
    blocks: list[Block] = [Facts([(name, cell) for name, cell in facts if cell is not None], "Operation")]
    if operation.results:
        rows = [Row((how.replace("_", " "), n)) for how, n in operation.results.items()]
        blocks.append(Table(("How", "Jobs#"), rows, "What became of them"))
    if operation.left:
        left = [Row((Problem(out.text), out.count)) for out in operation.left]
        blocks.append(Table(("Why~", "Jobs#"), left, "Left alone"))
    return View(
        blocks,
        operation,
        ("operations", "show", str(operation.id)),
        str(operation.id)[:8],
        (Link("Operations", "operations"),),
        offers=_offers(operation),
    )


def operation_id(word: str) -> UUID:
    try:
        return UUID(word)
    except ValueError:
        raise ConfigurationError(
            f"{word[:80]!r} is not the id of an operation. It looks like 0199c0de-7a31-7c41-9182-5be0a31ec41f"
        ) from None


def _state(operation: Operation) -> State:
    by = f"by {operation.stopped_by}" if operation.stopped_by else ""
    return State(operation.state, _TONES.get(operation.state, ""), by)


def _progress(operation: Operation) -> Cell:
    if operation.total.capped:
        return f"{operation.looked_at:,} of {number(operation.total)}"
    return Use(operation.looked_at, max(operation.total.count, operation.looked_at))


def _offers(operation: Operation) -> tuple[Offer, ...]:
    if operation.state in OPEN:
        return (Offer("operations stop", {"id": str(operation.id)}, "Stop"),)
    if not _undoable(operation):
        return ()
    return (Offer("undo", {"entry": str(operation.audit)}, "Undo what has not started"),)


def _undoable(operation: Operation) -> bool:
    return operation.state not in OPEN and operation.verb == "dead redrive" and operation.done > 0
