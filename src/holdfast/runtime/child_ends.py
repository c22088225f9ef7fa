"""Ends of a job in a child process of its own that are not the handler's doing. Neither is ever settled."""

from dataclasses import dataclass

from ..model.outcome import Failed, Released


@dataclass(frozen=True, slots=True)
class Crashed(Failed):
    """The child process died with the job in it."""


@dataclass(frozen=True, slots=True)
class NotApart(Released):
    """No child process can run it: none starts, it cannot import the app, or does not know the task."""
