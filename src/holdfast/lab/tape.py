"""What happened, in words: one moment for each note that matters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.lab.notes import Note
from holdfast.model.state import BLOCKED, DEAD_LETTER, PARKED

_MOST_MOMENTS = 400  # moments that are kept


@dataclass(frozen=True, slots=True)
class Moment:
    at: float  # seconds since the scene began
    who: str
    text: str
    tone: str = ""


def _claims(fields: dict[str, Any]) -> tuple[str, str]:
    many = f"{fields['rows']} jobs" if fields["rows"] > 1 else f"generation {fields['answer'][1]}"
    return f"claims, {many}", "run"


def _completes(fields: dict[str, Any]) -> tuple[str, str]:
    if not fields["changed"]:
        return "says done: 0 rows", "dead"
    return ("completes" if fields["changed"] == 1 else f"completes {fields['changed']} jobs"), "done"


def _fails(fields: dict[str, Any]) -> tuple[str, str]:
    """The row says what became of the job."""
    if not fields["rows"]:
        return "says failed: 0 rows", "dead"
    is_over = any(state in fields["answer"][0] for state in (DEAD_LETTER, BLOCKED, PARKED))
    return ("fails for good", "dead") if is_over else ("fails, and will try again", "retry")


_RAN: dict[str, Callable[[dict[str, Any]], tuple[str, str]]] = {
    "claim": _claims,
    "claim_streams": _claims,
    "claim_fair": _claims,
    "claim_these": _claims,
    "settle_done": _completes,
    "settle_finish": _completes,
    "settle_fail": _fails,
    "guard": lambda fields: (
        ("proves that the job is its own", "run")
        if fields["rows"]
        else ("is refused by the guard: 0 rows", "dead")
    ),
    "lock_owned": lambda fields: ("locks its job", "run"),
}
# Statements that a page shows: what happens to a job. Idle looks are left out.
SHOWN = frozenset(
    {
        *_RAN,
        "enqueue_many",
        "enqueue",
        "publish",
        "fence_workers",
        "revoke_expired",
        "take_back",
        "once_put",
        "once_get",
    }
)
_SAID: dict[str, tuple[str, str]] = {
    "worker.started": ("is in the registry", ""),
    "worker.gone": ("fences a silent worker", "retry"),
    "job.swept": ("takes a job back", "retry"),
    "job.lost": ("learns that the job is not its own", "dead"),
    "worker.fenced": ("learns that it was fenced", "dead"),
    "worker.draining": ("drains", "held"),
    "worker.stopped": ("leaves", "held"),
    "workflow.interrupted": ("leaves a run to the next owner", "retry"),
}
_DID: dict[str, tuple[str, str]] = {"mail": ("sends the mail", "run")}


def words_of(note: Note) -> tuple[str, str] | None:
    """The words and their colour; None: not for the tape."""
    if note.kind == "ran":
        return _RAN[note.name](note.fields) if note.name in _RAN else None
    if note.kind == "said":
        return _SAID.get(note.name)
    return _DID.get(note.name, (note.name, str(note.fields.get("tone", "run"))))


class Tape:
    def __init__(self, began: float, who: Callable[[int], str]) -> None:
        self._began = began
        self._who = who
        self.moments: list[Moment] = []
        self.last: dict[str, Any] | None = None  # the statement that ran last
        self.notes: list[Note] = []

    def add(self, note: Note) -> None:
        self.notes.append(note)
        who = self._who(note.pid)
        if note.kind == "ran" and note.name in SHOWN:
            self.last = {"who": who, "name": note.name, **note.fields}
        if words := words_of(note):
            self.moments.append(Moment(round(note.at - self._began, 2), who, *words))
            self.moments.sort(key=lambda moment: moment.at)
        del self.moments[:-_MOST_MOMENTS], self.notes[: -10 * _MOST_MOMENTS]

    def shown(self) -> list[Moment]:
        """The last ones. Of many jobs that complete only a few: else what somebody did is off the page at once."""
        usual = [moment for moment in self.moments if moment.text.startswith("completes")]
        rare = [moment for moment in self.moments if not moment.text.startswith("completes")]
        return sorted(usual[-20:] + rare[-40:], key=lambda moment: moment.at)

    def count(self, name: str, **fields: object) -> int:
        """How many notes of this name have these fields."""
        return sum(
            note.name == name and all(note.fields.get(key) == value for key, value in fields.items())
            for note in self.notes
        )
