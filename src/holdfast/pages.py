"""The content of a page of the dashboard: a shape describes here what it shows and what can be done, and draws nothing.

A page reads by a procedure and returns a View: blocks of cells. An act is a procedure too. The web surface draws the blocks,
checks who may act, and asks before it acts. `Shape.pages` names the module that has the pages of a shape.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from .operate.procedure import Procedure
from .tasks.taskset import TaskSet

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")  # each includes the ones before it
Given = Mapping[str, str]  # the input of a form or an address
Tone = Literal["", "run", "due", "sched", "retry", "done", "dead", "held", "block"]


# Cells --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Code:
    """Text from programs: in a monospaced font."""

    text: str


@dataclass(frozen=True, slots=True)
class Link:
    """A link to a page of the dashboard: `Link("mail", "queues/mail")`, with its query."""

    text: str
    page: str
    query: Mapping[str, str] = field(default_factory=dict)
    code: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """An error, in words that may quote user data: masked, and reduced to its class for viewers."""

    text: str | None
    words: bool = False  # a reason that somebody wrote: it has no class, and viewers do not read it


@dataclass(frozen=True, slots=True)
class State:
    """A word with its mark and its colour."""

    word: str
    tone: Tone = ""
    note: str | Problem = (
        ""  # behind it, in grey; if it quotes behind `: `, a viewer reads only the part before
    )


@dataclass(frozen=True, slots=True)
class Span:
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Use:
    """A part of a whole, as numbers and as a bar."""

    part: int
    whole: int
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that may be secret: masked, and left out for viewers."""

    value: Any
    width: int = 80
    task: str = ""  # whose arguments or result it is: that task's masking applies. Empty: any task's


Cell = str | int | float | datetime | Code | Link | State | Span | Use | Secret | Problem | None


# Blocks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    """An act, offered for one item: the surface shows it as a button."""

    act: str
    given: Given
    label: str | None = None  # None: the act's own


@dataclass(frozen=True, slots=True)
class Row:
    cells: Sequence[Cell]
    offers: Sequence[Offer] = ()
    key: str = ""  # what names the row in its table, so that its numbers change in place


@dataclass(frozen=True, slots=True)
class Table:
    heads: Sequence[
        str
    ]  # one that ends with `#` is a column of numbers, one with `~` takes the remaining width
    rows: Sequence[Row]
    title: str = ""
    note: str = ""  # beside the title
    empty: str = "Nothing here."


@dataclass(frozen=True, slots=True)
class Figures:
    """A row of numbers, each with its name."""

    rows: Sequence[tuple[str, Cell]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    rows: Sequence[tuple[str, Cell]]
    title: str = ""
    offers: Sequence[Offer] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """Code or JSON as it is; viewers see only its structure."""

    value: Any
    title: str = ""
    task: str = ""  # as in Secret


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    began: datetime
    ended: datetime | None  # None: not yet
    tone: Tone
    note: str = ""
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Bars:
    """Events as bars on one time axis."""

    bars: Sequence[Bar]
    now: datetime
    title: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts over time, step by step: as a picture with a table beside it."""

    names: Sequence[tuple[str, str]]  # each with its colour
    points: Sequence[tuple[datetime, Sequence[int]]]
    title: str
    note: str = ""
    offers: Sequence[Link] = ()  # other spans of time
    marks: Sequence[tuple[datetime, str]] = ()  # events meanwhile


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of a log, and its position."""

    label: str
    page: str
    position: int
    note: str = ""  # its kind
    said: str = ""  # its lag
    tone: Tone = "done"


@dataclass(frozen=True, slots=True)
class Reach:
    """A log from its first to its last position, and the position of each reader."""

    first: int
    last: int
    readers: Sequence[Reader]
    title: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Owned:
    """One worker's share of a ring."""

    label: str
    ranges: Sequence[tuple[int, int]]  # first and last bucket
    link: Link
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Pinned:
    """A bucket of a ring that deserves attention, with the reason."""

    bucket: int
    label: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class Ring:
    """The owners of buckets, as a circle: the chosen worker in colour, all others in grey."""

    buckets: int
    owned: Sequence[Owned]
    title: str
    note: str = ""
    pinned: Sequence[Pinned] = ()


@dataclass(frozen=True, slots=True)
class Alert:
    """One sentence that must be read first; a viewer reads the part before `: `, after which it quotes."""

    text: str | Problem
    tone: Tone = "retry"
    title: str = ""
    offers: Sequence[Offer] = ()


Block = Table | Figures | Facts | Text | Bars | Counted | Reach | Ring | Alert


@dataclass(frozen=True, slots=True)
class View:
    blocks: Sequence[Block]
    data: Any  # the same for programs
    command: Sequence[str]  # the command that shows the same: ("schedule", "list")
    title: str = ""
    crumbs: Sequence[Link] = ()
    aside: Sequence[Block] = ()  # beside the others
    offers: Sequence[Offer] = ()  # of the whole page
    more: Mapping[str, str] | None = None  # the query of the next page; None: there is no more
    cut: str = ""  # how far a search came that stopped early


# Pages and acts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The request of a page."""

    path: Given  # the parts of its path
    query: Given
    tasks: TaskSet  # of the app, as far as known
    who: str = ""  # the person who asks
    role: Role = "viewer"


@dataclass(frozen=True, slots=True)
class Filter:
    """A field above a list. It is in the address, so that a list can be shared."""

    name: str
    label: str
    choices: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Page:
    path: str  # `schedules`, or `workflows/{run}`
    title: str
    load: Callable[[PageRequest], Procedure[View]]
    group: Literal["Work", "Flow", "System", ""] = ""  # of the menu; empty: it is reached from another page
    icon: str = ""
    about: str = ""  # its purpose, and how to begin: one or two sentences
    in_use: Callable[[], Procedure[bool]] | None = None  # None: always
    filters: Sequence[Filter] = ()
    searches: Sequence[str] = ()  # names in its address that search in text that viewers do not read
    takes: Sequence[str] = ()  # names in its address beside its filters. Any other name is refused
    begin: Offer | None = None  # offered where it is not in use
    live: float = 0.0  # seconds between two looks while somebody has it open; 0: it stays as it was read

    def names(self) -> tuple[str, ...]:
        """Every name that its query may have."""
        return (*(one.name for one in self.filters), *self.takes)


@dataclass(frozen=True, slots=True)
class Field:
    """One value that an act takes."""

    name: str
    label: str = ""  # empty: it is not asked for, the offered value stays
    kind: Literal["text", "number", "choice", "json", "time"] = "text"
    choices: Sequence[str] = ()
    required: bool = True
    value: str = ""
    hint: str = ""
    shown: bool = False  # the preview depends on it, so it is asked for before the preview is made


@dataclass(frozen=True, slots=True)
class Preview:
    """What an act would change, before it is done."""

    sentence: str
    count: int | None = None  # None: it is about one thing
    capped: bool = False
    warnings: Sequence[str] = ()
    sample: Table | None = None
    fixed: Given = field(
        default_factory=dict
    )  # values of the act that it found: the act is confirmed with them


@dataclass(frozen=True, slots=True)
class ActResult:
    """The result of an act."""

    sentence: str
    data: Any = None
    page: str = ""  # where it can be seen
    secret: str = ""  # shown once
    undo: Offer | None = None  # the act that undoes it; offered for a few seconds


@dataclass(frozen=True, slots=True)
class Act:
    name: str  # as on the command line and in the audit: `schedule run`
    label: str
    do: Callable[[Given], Procedure[ActResult]]
    fields: Sequence[Field]
    command: Callable[[Given], Sequence[str]]  # the same on the command line, without `holdfast`
    preview: Callable[[Given], Procedure[Preview]] | None = None
    role: Role = "operator"
    at_once: bool = False  # it can be undone by its opposite, so it needs no confirmation
    deletes: bool = False  # it cannot be undone
    asks_why: bool = True  # it takes a reason, for the audit
    needs_why: bool = False  # a page requires one
    form: Callable[[Given], Procedure[Sequence[Field]]] | None = (
        None  # what a page asks for, where that depends on what the act is about
    )


WHY = "reason"  # the field of an act that is for the audit


def with_why(act: Act) -> Act:
    """The act with a field for its reason, as every command that acts has the option."""
    if not act.asks_why or any(one.name == WHY for one in act.fields):
        return act
    return replace(
        act, fields=(*act.fields, Field(WHY, "Why", required=False, hint="It is kept in the audit."))
    )


@dataclass(frozen=True, slots=True)
class Pages:
    pages: Sequence[Page]
    acts: Sequence[Act] = ()
    coded_acts: Callable[[TaskSet], Sequence[Act]] | None = None  # acts that need the code of the app
