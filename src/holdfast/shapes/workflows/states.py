"""The states of a run, as the database writes them."""

from typing import Literal, get_args

State = Literal[
    "open",
    "suspended",
    "compensating",
    "paused",
    "diverged",
    "completed",
    "failed",
    "cancelled",
    "terminated",
]
STATES: tuple[State, ...] = get_args(State)
ENDED: tuple[State, ...] = ("completed", "failed", "cancelled", "terminated")
OPEN = tuple(state for state in STATES if state not in ENDED)
WRONG = frozenset({"diverged", *ENDED}) - {"completed"}  # a run in one of these has an error
