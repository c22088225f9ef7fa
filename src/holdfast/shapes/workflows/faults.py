"""Exceptions that workflows raise, and that are raised in them."""

from collections.abc import Sequence
from typing import Any

from ...errors import HoldfastError

# asyncio ends the whole worker when a task raises one of these. In the code of a run they count as its failure.
EXITS = (SystemExit, KeyboardInterrupt)


def left(what: str, error: BaseException) -> RuntimeError:
    """`sys.exit()` in the code of a run."""
    return RuntimeError(f"{what} raised {type(error).__name__}: {error}")


class StepFailed(HoldfastError):
    """A step, call or child that ended badly. The same class on the first run and on replay, whatever the step raised."""

    def __init__(self, key: str, kind: str, message: str, attempts: int = 1, data: Any = None) -> None:
        spent = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        said = f"{kind}: {message}" if message else kind
        super().__init__(f"{key} failed after {spent}: {said}")
        self.key = key
        self.kind = kind  # class name of what it raised
        self.message = message
        self.attempts = attempts
        self.data = data  # what NonRetryable(data=) carried


class NonRetryable(HoldfastError):
    """Raise it inside a step: no further attempt."""

    def __init__(self, message: str = "", *, data: Any = None) -> None:
        super().__init__(message or "no further attempt")
        self.data = data


class WorkflowCancelled(HoldfastError):
    """The run was cancelled. Raised at its next call, and recorded, so that a replay raises it at the same place."""


class WorkflowFailed(HoldfastError):
    """The run ended without a result: what run.result() raises."""

    def __init__(self, message: str, *, kind: str = "", state: str = "failed") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.state = state  # failed, cancelled or terminated


class UnscopedTask(HoldfastError):
    """A call of a workflow from an asyncio task that is not its own: its steps would have no stable identity."""


class ContinueAsNew(BaseException):
    """Raised by wf.continue_as_new(). `except Exception` does not catch it."""

    def __init__(self, payload: str) -> None:
        super().__init__("the run continues in a new era")
        self.payload = payload


class Evicted(BaseException):
    """The run's code leaves memory: every call of the workflow raises it from then on, and nothing is recorded."""


class Diverged(BaseException):
    """The code asks for something other than the history has. Its text is the reason for setting the run aside."""

    def __init__(
        self,
        message: str,
        *,
        scope: str = "",
        n: int | None = None,
        recorded: str | None = None,
        asked: str | None = None,
        unasked: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.scope = scope
        self.n = n  # the place in its scope; None: it has no order
        self.recorded = recorded
        self.asked = asked
        self.unasked = tuple(unasked)  # recorded before this place, and not asked for yet
