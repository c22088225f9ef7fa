"""One claim of a run: its function is called from the top with the history, and ends in an outcome of its job."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ... import telemetry
from ...errors import ConfigurationError
from ...model.outcome import Cancelled, Completed, DeadLettered, ErrorText, Held, Outcome, Released
from ...model.signals import Cancel, Retry, Snooze
from ...model.text import describe
from ...tasks.payload import stored_order
from .core import Core, Rules, Scope, current
from .faults import ContinueAsNew, Diverged, Evicted, WorkflowCancelled, WorkflowFailed
from .journal import Journal
from .outgoing import Events
from .workflow import Workflow

PATIENCE = 5.0  # seconds that code may take to leave memory


@dataclass(frozen=True, slots=True)
class Code:
    """A version of a workflow, as its runs need it."""

    name: str
    call: Callable[[Workflow, dict[str, Any]], Coroutine[Any, Any, Any]]
    encode: Callable[[tuple[Any, ...], dict[str, Any]], str]  # arguments
    decode: Callable[[str], dict[str, Any]]
    encode_result: Callable[[object], str]
    rules: Rules = Rules()  # noqa: RUF009 it is never changed
    events: Events | None = None  # None: it publishes nothing


async def drive(
    code: Code, journal: Journal, arguments: dict[str, Any], fence: str = "", *, verify: bool | None = None
) -> Outcome:
    """`verify`: replay each end on its own history, and set the run aside if the keys differ. None: as the rules say,
    and in python -X dev."""
    if verify is None:
        verify = code.rules.verify or sys.flags.dev_mode
    history = await journal.history()
    while True:
        core = Core(journal, history, code.rules, fence)
        ended = await _once(core, code, arguments)
        if isinstance(ended, ContinueAsNew):
            try:  # signals that were not received stay
                history = await journal.continue_as_new(ended.payload, core.handed.left())
            except (
                ConfigurationError
            ) as error:  # a child or call is open: otherwise no later try would find it
                return DeadLettered(describe(error))
            arguments = code.decode(json.dumps(stored_order(json.loads(ended.payload))))
            continue
        if verify:
            return await _verified(core, code, arguments, ended)
        return ended


async def replay(code: Code, journal: Journal, arguments: dict[str, Any]) -> Diverged | None:
    """Call the code with a history, up to the first call without a record. No body runs, and nothing is written.
    Returns where code and history differ; None: they match."""
    core = Core(journal, await journal.history(), code.rules, behind="stop")
    await _once(core, code, arguments)
    return core.stopped if isinstance(core.stopped, Diverged) else None


async def _once(core: Core, code: Code, arguments: dict[str, Any]) -> Outcome | ContinueAsNew:
    loop = asyncio.get_running_loop()
    news = loop.create_future()  # it has ended, or must leave memory

    def tell() -> None:
        if not news.done():
            news.set_result(None)

    def ended(root: "asyncio.Task[Any]") -> None:
        if not root.cancelled():
            root.exception()  # part of the outcome: asyncio would report it as unhandled
        tell()

    core.leave = tell
    core.journal.cancelled.then = core.cancel_bodies
    core.root = root = loop.create_task(_root(core, code, arguments))
    root.add_done_callback(ended)
    try:
        await news
        if not root.done():
            await _leave(core, root)
    except asyncio.CancelledError:  # the worker needs the memory: it stops, or the run has another owner
        core.stop(Evicted(), Released("the worker stopped"))
        await _leave(core, root)
        raise
    finally:
        core.journal.cancelled.then = core.leave = None
        await core.leave_memory()
    if core.outcome is not None:
        return core.outcome
    return root.result()


async def _leave(core: Core, root: "asyncio.Task[Any]") -> None:
    """Wait for code that was cancelled; code that does not end in time is abandoned, and can record nothing."""
    await asyncio.wait({root}, timeout=PATIENCE)
    if not root.done():
        telemetry.emit(
            "workflow.abandoned", level=logging.ERROR, run_id=str(core.history.run_id), seconds=PATIENCE
        )


async def _root(core: Core, code: Code, arguments: dict[str, Any]) -> Outcome | ContinueAsNew:
    scope = Scope(core, "", core.history.created_at, task=asyncio.current_task())
    current.set(scope)
    workflow = Workflow(core, code.encode, code.events)
    try:
        value = await code.call(workflow, arguments)
        if core.unknown_cut is not None:
            raise core.unknown_cut
        core.end(scope)
        result = code.encode_result(value)
    except ContinueAsNew as ended:
        core.end(scope)
        await core.finish()
        return ended
    except BaseException as error:
        if core.stopped is not None:
            raise core.stopped from error
        if scope.task is not None and scope.task.cancelling():  # by the owner of the loop, at its end
            raise
        if scope.task is not asyncio.current_task(core.loop):  # the coroutine is thrown away unfinished
            raise
        core.end(scope)
        await workflow._saga.compensate(scope)
        await core.finish()
        return _failed(core.unknown_cut or error, workflow._saga.failed)
    else:
        await core.finish(completed=True)
        return Completed(result)
    finally:
        scope.task = None  # whose context knows the scope


def _failed(error: BaseException, undone: Sequence[str]) -> Outcome:
    more = f". Not undone: {'; '.join(undone)}" if undone else ""
    if isinstance(error, WorkflowCancelled | Cancel) and not undone:
        return Cancelled(describe(error).message)
    said = _told(error)
    kind = error.kind if isinstance(error, WorkflowFailed) and error.kind else said.kind
    return DeadLettered(ErrorText(kind, f"{said.message}{more}", said.trace))


def _told(error: BaseException) -> ErrorText:
    """In words; signals by which handlers ask for another call are no result of a run."""
    said = describe(error)
    if isinstance(error, Snooze):
        return replace(said, message="a workflow cannot raise Snooze. Write wf.sleep()")
    if isinstance(error, Retry):
        return replace(
            said, message=f"a workflow cannot raise Retry: only its steps are tried again. {said.message}"
        )
    return said


async def _verified(core: Core, code: Code, arguments: dict[str, Any], ended: Outcome) -> Outcome:
    """The same end, if a replay of the records comes to it too."""
    if not isinstance(ended, Completed):
        return ended
    history = core.history._replace(rows=core.known())
    again = await _once(Core(core.journal, history, code.rules, core.fence, behind="refuse"), code, arguments)
    if isinstance(again, Completed) and again.result != ended.result:
        return Held(
            "diverged: a replay returned something else than the first run; see holdfast workflow check"
        )
    return again if isinstance(again, Outcome) else ended
