"""Declarations of users: `@app.workflow(version=2)` over a function whose first parameter is a Workflow."""

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from ...errors import DuplicateTask, TaskDefinitionError
from ...model.duration import Duration
from ...model.outcome import Held, Misfit, Outcome
from ...runtime.handler import Handler, PayloadError
from ...runtime.job import Job
from ...tasks import checks
from ...tasks.codec import Codec
from ...tasks.convert import type_name
from ...tasks.definition import Definition, SourceLine
from ...tasks.options import TaskSettings, masked_names
from ...tasks.registry import TaskRegistry
from ...tasks.signature import HandlerSignature, Unresolved, analyse, call_line
from .core import MAX_HISTORY, Rules
from .database_journal import DatabaseJournal
from .drive import Code, drive
from .journal import STICKY
from .outgoing import Events
from .sync import SyncWorkflow, run_in_thread
from .workflow import Workflow
from .workflow_type import WorkflowType

KIND = "workflows"
QUEUE = "workflows"
P = ParamSpec("P")
T = TypeVar("T")


class WorkflowDecorator(Protocol):
    """The result of `@app.workflow(...)`."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[Workflow, P], Coroutine[Any, Any, T]], /
    ) -> WorkflowType[P, T]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[SyncWorkflow, P], T], /) -> WorkflowType[P, T]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """One version of a workflow in the code."""

    name: str
    version: int
    queue: str
    place: SourceLine
    codec: Codec
    code: Code
    masked: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Identifies its code: the place of the function, and the file around it."""
        return f"{self.place.qualname}:{self.place.line}:{_file(self.place.file)}"

    @property
    def input(self) -> dict[str, str]:
        """The names and types of its arguments, for people."""
        found = {}
        for name in self.codec.signature.params:
            found[name] = type_name(self.codec.signature.hint(name))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class WorkflowDefinition(Definition):
    """All versions of a workflow, as one task that takes the input of each of them."""

    versions: Mapping[int, Declared] = field(default_factory=dict)

    def handler(self) -> Handler:
        return Handler(
            name=self.name,
            versions=frozenset(self.versions),
            func=self.signature.func,
            is_async=True,
            wants_job=True,
            transaction="none",
            decode=self._decode,
            encode=self.codec.encode_result,
            fingerprint=self._fingerprint,
            queue=self.settings.queue,
            masked=self.settings.masked,
            drive=self._drive,
        )

    def _decode(self, version: int, text: str) -> dict[str, Any]:
        found = self.versions.get(version)
        if found is None:
            raise PayloadError(f"no code here knows {self.name} version {version}")
        return found.codec.decode(version, text)

    def _fingerprint(self) -> str:
        """Of its inputs and its code: a run that diverged is tried again by other code, not by the same."""
        parts = [f"{n}\n{d.codec.fingerprint()}\n{d.text}" for n, d in sorted(self.versions.items())]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    async def _drive(self, job: Job, arguments: dict[str, Any]) -> Outcome:
        version = self.versions[job._claimed.version]
        code = version.code
        # A plain function that rests would keep its thread: it is put away at once.
        journal = DatabaseJournal(job, sticky=code.rules.sticky if version.codec.signature.is_async else 0.0)
        ended = await drive(code, journal, arguments, job.fence)
        if isinstance(ended, Held):
            return Misfit(ended.reason, self._fingerprint(), newer=True)
        return ended


class Workflows(TaskRegistry):
    """The part of a registry that declares workflows."""

    _events: Events

    @overload
    def workflow(
        self, fn: Callable[Concatenate[Workflow, P], Coroutine[Any, Any, T]], /
    ) -> WorkflowType[P, T]: ...
    @overload
    def workflow(self, fn: Callable[Concatenate[SyncWorkflow, P], T], /) -> WorkflowType[P, T]: ...
    @overload
    def workflow(
        self,
        /,
        *,
        version: int = 1,
        name: str | None = None,
        queue: str = QUEUE,
        max_history: int = MAX_HISTORY,
        sticky: Duration = STICKY,
        masked: Sequence[str] = (),
    ) -> WorkflowDecorator: ...
    def workflow(
        self,
        fn: Any = None,
        /,
        *,
        version: int = 1,
        name: str | None = None,
        queue: str = QUEUE,
        max_history: int = MAX_HISTORY,
        sticky: Duration = STICKY,
        masked: Sequence[str] = (),
    ) -> Any:
        """Declare a workflow: `@app.workflow(version=2)` over `async def checkout(wf: Workflow, order_id: int) -> str`.

        A run keeps the version it was started with; functions of one name and several versions stand side by side.
        `max_history`: records of one era. `sticky`: how long a wait stays in memory before the run is put away.
        `masked`: names of arguments and fields that the dashboard shows to nobody."""
        fail = TaskDefinitionError
        checks.integer(version, "version", 1, 32_767, fail)
        checks.integer(max_history, "max_history", 1, 1_000_000, fail)
        checks.queue_name(queue, fail)
        rules = Rules(max_history, checks.period(sticky, "sticky", fail))
        secrets = masked_names(masked)

        def declare(fn: Any, /, local: Mapping[str, Any] | None = None) -> Any:
            signature = _signature(fn, sys._getframe(1).f_locals if local is None else local)
            full = checks.task_name(name, "the workflow's name", fail) if name else self._name_of(fn)
            return self._declare_workflow(full, version, queue, signature, rules, secrets)

        return declare if fn is None else declare(fn, sys._getframe(1).f_locals)

    def _declare_workflow(
        self,
        name: str,
        version: int,
        queue: str,
        signature: HandlerSignature,
        rules: Rules,
        secrets: Sequence[str],
    ) -> WorkflowType[Any, Any]:
        codec = Codec(name, signature, version)
        code = Code(
            name,
            _caller(signature),
            codec.encode,
            lambda text: codec.decode(version, text),
            codec.encode_result,
            rules,
            self._events,
        )
        new = Declared(name, version, queue, SourceLine.of(signature.func), codec, code, tuple(secrets))
        known = self._things.setdefault(KIND, {})
        others = {one.version: one for one in known.values() if one.name == name}
        self._check_other(new, others)
        others[version] = new
        newest = others[max(others)]
        every = tuple(dict.fromkeys(secret for one in others.values() for secret in one.masked))
        settings = TaskSettings(name=name, version=newest.version, queue=queue, masked=every)
        self._tasks[name] = WorkflowDefinition(
            name, settings, newest.codec.signature, self._binding, newest.place, None, versions=others
        )
        known[f"{name} version {version}"] = new
        return WorkflowType(name, version, queue, codec, self._binding, signature.func)

    def _check_other(self, new: Declared, others: Mapping[int, Declared]) -> None:
        same = others.get(new.version)
        if same is not None and same.place != new.place:
            raise DuplicateTask(
                f"workflow {new.name!r} version {new.version} is declared twice: {same.place}, and {new.place}. "
                f"Give one of them another version, or another name: workflow(version={new.version + 1})"
            )
        task = self._tasks.get(new.name)
        if task is not None and not others:
            raise DuplicateTask(
                f"{new.name!r} is a task already: {task.place}. Give the workflow another name: workflow(name=...)"
            )
        for other in others.values():
            if other.queue != new.queue:
                raise TaskDefinitionError(
                    f"workflow {new.name!r} version {new.version} has queue {new.queue!r}, and version {other.version} has "
                    f"{other.queue!r}. All versions share one queue: declare the same"
                )


@functools.cache
def _file(name: str) -> str:
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError:
        return ""  # of a shell, or an archive


def _caller(signature: HandlerSignature) -> Callable[[Workflow, dict[str, Any]], Coroutine[Any, Any, Any]]:
    func = signature.func
    if signature.is_async:
        return lambda workflow, arguments: func(workflow, **arguments)
    return lambda workflow, arguments: run_in_thread(func, workflow, arguments)


def _signature(fn: Any, local: Mapping[str, Any]) -> HandlerSignature:
    """The function without its first parameter, which is the Workflow."""
    found = analyse(fn, local)
    label = getattr(fn, "__name__", str(fn))
    wanted = Workflow if found.is_async else SyncWorkflow
    params = list(found.params.values())
    first = params[0] if params else None
    hint = found._hints.get(first.name) if first is not None else None
    named = isinstance(hint, Unresolved) and str(hint.source).strip("'\"").endswith(wanted.__name__)
    if found.injected or first is None or not (hint is wanted or named):
        rest = inspect.Signature(
            [p for p in params if p.name != "wf" and found._hints.get(p.name) is not wanted]
        )
        inner = call_line(label, rest).partition("(")[2]
        comma = "" if inner == ")" else ", "
        raise TaskDefinitionError(
            f"{label}: the first parameter of a workflow is a {wanted.__name__}, and a Job or transaction belongs to its "
            f"steps: {'async ' if found.is_async else ''}def {label}(wf: {wanted.__name__}{comma}{inner}"
        )
    if first.kind is inspect.Parameter.KEYWORD_ONLY:
        raise TaskDefinitionError(f"{label}: wf is given by position. Put it before the '*'")
    hints = {name: kept for name, kept in found._hints.items() if name != first.name}
    return HandlerSignature(fn, found.call.replace(parameters=params[1:]), {}, hints, found._globals)
