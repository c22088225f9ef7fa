"""Keeps one child process: a thread that starts it, hands it jobs, passes on what it reports, and ends it.

It is a thread, so that no limit depends on an event loop that a handler may block. Everything here except `assign`, `end`,
`wake` and `join` runs in that thread.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from ... import telemetry
from ...model.outcome import Cancelled, DeadLettered, ErrorText, Failed, Held, Lost, Outcome, Released
from ..child_ends import Crashed
from .assignment import Assignment, Launch, NotStarted
from .frames import BadFrame, Frame, job_to_json, outcome_from_json
from .memory import MB, exceeded, kills_so_far, out_of_memory_kills, used_together
from .output import Output
from .process import ChildProcess, ended_by
from .wear import Wear

START = 120.0  # to import the app and enter its lifespan
SLOW = 10.0  # after this long a warning says that it still starts
# A child that does not take its job within this time is stopped, or stuck in code of an earlier job.
BEGIN = 10.0
GRACE = 1.0  # from a cancellation to the kill
DUMP = 0.25  # for a child that is late to report where it is
PART = 2.0  # for a child that is dismissed: its lifespan ends
IDLE = 30.0
LOOK = 0.2  # between two readings of the memory
TELL = 0.2  # for listeners, so that they hear of a job before it ends


class ChildListener(Protocol):
    """What the thread of a child reports to."""

    def emit_later(self, emit: Callable[[], None]) -> None: ...

    def flush(self, seconds: float) -> None: ...

    def started(self, pid: int) -> None: ...

    def rests(self, thread: "ChildThread") -> None: ...

    def may_leave(self, thread: "ChildThread") -> bool: ...

    def ended(self, thread: "ChildThread", pid: int | None) -> None: ...


class ChildThread:
    def __init__(self, launch: Launch, crew: ChildListener, job: Assignment | None = None) -> None:
        self.tasks: Future[list[str] | NotStarted] = Future()  # what the child can run, once it has the app
        self.memory = 0  # bytes, when it was last without a job
        self._launch = launch
        self._crew = crew
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        self._job = job
        self._closed = False  # takes no more jobs
        self._end_asked = False
        self._is_ready = False
        self._is_parting = False
        self._is_over = False
        self._since = time.monotonic()  # when it began to start, to rest or to part
        self._tell_slow = True
        self._broken: NotStarted | None = None
        self._wear = Wear(launch.jobs)
        self._output = Output()
        self._kills = 0
        self._thread = threading.Thread(target=self._main, name="holdfast-process", daemon=True)
        self._thread.start()

    # Called by others -----------------------------------------------------------------------------------------------

    def assign(self, job: Assignment) -> bool:
        """False: it is about to end."""
        with self._lock:
            if self._closed:
                return False
            self._job = job
        self.wake()
        return True

    def end(self) -> None:
        """Dismiss the child; a job that it still has is given back."""
        self._end_asked = True
        self.wake()

    def wake(self) -> None:
        with self._lock:
            if self._child is not None:
                self._child.wake()

    def join(self, seconds: float) -> None:
        self._thread.join(max(0.0, seconds))

    # The thread -----------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            child = ChildProcess(self._launch.command)
        except Exception as error:  # noqa: BLE001 a thread that dies here would keep its job for ever
            self._crew.ended(self, None)
            self._deliver(NotStarted(f"no child process can be started: {error}"))
            return
        with self._lock:
            self._child = child
        try:
            self._crew.started(child.pid)
            child.send(self._launch.hello)
            while not self._is_over:
                self._turn(child)
        except Exception as error:  # noqa: BLE001 a mistake here must not cost a job its outcome
            telemetry.log.exception("the thread of child process %s failed", child.pid)
            end = self._failure("ProcessDied", f"its thread failed: {error!r}")
            try:
                self._finish(child, end)
            finally:
                self._deliver(end)  # it may have failed on its way there
        with self._lock:
            self._child = None
        child.close()

    def _turn(self, child: ChildProcess) -> None:
        """Wait for an event, read what the child reports, and check whether it may continue."""
        child.wait(self._pause())
        try:
            if child.prints:
                self._emit_output(child.read_output())
            if child.speaks:
                self._hear(child)
            if child.may_have_ended and (child.hung_up or child.has_exited()):
                self._emit_output(child.read_output())
                self._hear(child)  # its last words may have arrived meanwhile
                self._died(child)
            elif not self._is_over:
                self._look(child, time.monotonic())
        except BadFrame as error:
            self._finish(child, self._failure("ProcessDied", f"it sent {error}, and was ended"))

    def _pause(self) -> float | None:
        """Seconds until the next check, if nothing happens before."""
        job = self._job
        if self._is_parting:
            times = [self._since + PART]
        elif not self._is_ready:
            times = [self._since + START, *([self._since + SLOW] if self._tell_slow else [])]
        elif job is None:
            times = [self._since + IDLE]
        elif not job.is_sent:
            return 0.0
        else:
            known = (job.begin_by, job.late_at, job.grace_until, job.look_at)
            times = [at for at in known if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _look(self, child: ChildProcess, now: float) -> None:
        job = self._job
        if job is not None and (end := self._stopped(job)) is not None:
            self._finish(child, end)
        elif self._is_parting:
            if now >= self._since + PART:
                self._finish(child)
        elif not self._is_ready:
            self._look_starting(child, now)
        elif job is not None:
            self._look_working(child, job, now)
        elif self._end_asked or (now >= self._since + IDLE and self._crew.may_leave(self)):
            self._part(child)
        elif now >= self._since + IDLE:
            self._since = now

    def _stopped(self, job: Assignment) -> Outcome | None:
        """Why the child has to be killed at once."""
        if job.is_lost():
            return Lost()
        if self._end_asked or job.running.stop == "release":
            return Released("the worker stopped before the handler ended")
        if job.running.stop == "cancel" and not job.is_sent:
            return Cancelled("cancelled before it ran")
        return None

    def _look_starting(self, child: ChildProcess, now: float) -> None:
        if self._end_asked:
            self._finish(child)
        elif now >= self._since + START:
            reason = f"a child process was not ready after {START:g} s"
            self._finish(child, NotStarted(reason, self._output.tail()))
        elif self._tell_slow and now >= self._since + SLOW:
            self._tell_slow = False
            self._emit("process.slow_start", level=logging.WARNING, pid=child.pid, seconds=SLOW)

    def _look_working(self, child: ChildProcess, job: Assignment, now: float) -> None:
        limit = job.handler.memory_limit
        if not job.is_sent:
            job.is_sent, job.begin_by = True, now + BEGIN
            self._output = Output()
            self._kills = kills_so_far(now)
            child.send({"frame": "job", "job": job_to_json(job.running.claimed), **job.frame})
        elif job.begin_by is not None and now >= job.begin_by:
            self._finish(
                child, NotStarted(f"a child process did not take its job within {BEGIN:g} s", again=True)
            )
        elif job.running.stop == "cancel" and job.grace_until is None:
            job.grace_until = now + GRACE
            child.send({"frame": "cancel"})
        elif job.grace_until is not None and now >= job.grace_until:
            self._finish(child, Cancelled("cancelled while running"))
        elif job.late_at is not None and now >= job.late_at:
            self._look_late(child, job, now)
        elif limit is not None and job.look_at is not None and now >= job.look_at:
            job.look_at = now + LOOK
            if (used := used_together(child.pid)) > limit:
                detail = f": it and what it started used {used // MB} MB"
                self._finish(child, self._failure("MemoryLimit", exceeded(limit, detail)))

    def _look_late(self, child: ChildProcess, job: Assignment, now: float) -> None:
        """Its time is over. From here on nothing that it does counts, except what it prints."""
        if job.is_late:
            self._finish(child, job.handler.timed_out(job.running.claimed.attempt))
        else:
            job.is_late, job.late_at = True, now + DUMP
            child.ask_where()

    def _part(self, child: ChildProcess) -> None:
        """Let it end by itself, so that its lifespan ends; if that takes too long, it is killed."""
        with self._lock:
            self._closed = True
        self._is_parting, self._since = True, time.monotonic()
        child.send({"frame": "end"})

    # What the child reports --------------------------------------------------------------------------------------------

    def _hear(self, child: ChildProcess) -> None:
        for frame in child.receive():
            try:
                self._take(child, frame)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise BadFrame(f"a frame {frame['frame'][:60]!r} that cannot be read: {error!r}") from None

    def _take(self, child: ChildProcess, frame: Frame) -> None:
        match frame["frame"]:
            case "loaded":
                if not self.tasks.done():  # its caller may be gone
                    self.tasks.set_result([str(task) for task in frame["tasks"]])
            case "broken":
                self._broken = NotStarted(str(frame["reason"]), str(frame["trace"]))
            case "ready":
                self._is_ready, self._since, self.memory = True, time.monotonic(), int(frame["memory"])
            case "log":
                logger = logging.getLogger(str(frame["logger"]))
                self._emit_as_job(partial(logger.log, int(frame["level"]), "%s", str(frame["text"])))
            case "event":
                self._emit_as_job(
                    partial(telemetry.emit, str(frame["name"]), level=int(frame["level"]), **frame["fields"])
                )
            case name if self._job is not None and frame["of"] == self._job.key:
                self._take_of_job(child, self._job, name, frame)
            case _:
                pass  # about a job that is over

    def _take_of_job(self, child: ChildProcess, job: Assignment, name: str, frame: Frame) -> None:
        if name == "begun":
            now = time.monotonic()
            job.has_begun, job.begin_by = True, None
            job.late_at = None if job.handler.timeout is None else now + job.handler.timeout
            job.look_at = None if job.handler.memory_limit is None else now + LOOK
        elif name == "progress" and job.running.job is not None:
            job.running.job.progress(frame["fraction"], frame["message"])
        elif name == "completing" and job.running.job is not None:
            job.running.job._completed = True
        elif name == "outcome" and not job.is_late:
            self._take_outcome(child, job, outcome_from_json(frame["outcome"]), frame)
        elif name != "outcome":
            raise BadFrame(f"a frame {name[:60]!r}")

    def _take_outcome(self, child: ChildProcess, job: Assignment, outcome: Outcome, frame: Frame) -> None:
        self._emit_output(child.read_output(), end=True)
        self.memory = int(frame["memory"])
        is_out = self._wear.is_out(self.memory)
        end = NotStarted(outcome.reason) if isinstance(outcome, Held) else self._with_output(outcome)
        self._job, self._output = None, Output()
        # A child that does not know the task runs other code than its worker: no more jobs for it.
        if frame["spent"] or isinstance(outcome, Held) or is_out:
            self._part(child)
        else:
            self._since = time.monotonic()
            self._crew.rests(self)
        self._crew.flush(TELL)
        job.deliver(end)

    # What the child prints ------------------------------------------------------------------------------------------

    def _context(self) -> dict[str, Any]:
        return {} if self._job is None else self._job.context

    def _emit_output(self, data: bytes, *, end: bool = False) -> None:
        context = self._context()
        for line in [*self._output.feed(data), *(self._output.end() if end else [])]:
            self._emit("process.output", line=line, **context)
        if end and (count := self._output.dropped):
            self._emit("process.output_cut", level=logging.WARNING, bytes=count, **context)

    def _emit_as_job(self, emit: Callable[[], None]) -> None:
        """Emitted with the running job's fields, but in another thread: subscribers may be slow."""
        context = self._context()

        def bound() -> None:
            with telemetry.bound(**context):
                emit()

        self._crew.emit_later(bound)

    def _emit(self, name: str, **fields: Any) -> None:
        self._crew.emit_later(partial(telemetry.emit, name, **fields))

    def _with_output(self, outcome: Outcome) -> Outcome:
        """A failed attempt keeps the last lines that its process printed."""
        tail = self._output.tail()
        if not tail or not isinstance(outcome, Failed | DeadLettered):
            return outcome
        trace = f"{outcome.error.trace.rstrip()}\n\n" if outcome.error.trace else ""
        text = f"{trace}The process printed at last:\n{tail}\n"
        return replace(outcome, error=replace(outcome.error, trace=text))

    # The end of the child -------------------------------------------------------------------------------------------

    def _close(self) -> Assignment | None:
        """Take no more jobs; return the one that it has. Before its end is decided, so that no job comes in between."""
        with self._lock:
            self._closed = True
            return self._job

    def _failure(self, kind: str, message: str) -> Outcome | NotStarted | None:
        job = self._close()
        if job is None:
            return None
        if not job.has_begun:
            return NotStarted(message, again=self._is_ready)
        if job.running.apart is not None and kind == "ProcessDied" and not job.handler.process:
            return Crashed(ErrorText(kind, message))
        return job.handler.failed(ErrorText(kind, message), job.running.claimed.attempt)

    def _died(self, child: ChildProcess) -> None:
        """It ended by itself, or closed its socket."""
        if self._is_over:
            return
        job = self._close()
        how = ended_by(child.exit_code(), out_of_memory_kills() > self._kills)
        if not self._is_ready:
            self._finish(child, self._broken or NotStarted(f"{how} before it was ready"))
        elif job is not None and not job.has_begun:
            self._finish(child, NotStarted(f"{how} before the handler began", again=True))
        elif job is not None and job.is_late:
            self._finish(child, job.handler.timed_out(job.running.claimed.attempt))
        else:
            self._finish(child, self._failure("ProcessDied", how))

    def _finish(self, child: ChildProcess, end: Outcome | NotStarted | None = None) -> None:
        """Kill what is left of it, and only then say how its job ended."""
        if self._is_over:
            return
        self._is_over = True
        self._close()
        child.kill()
        self._emit_output(child.read_output(), end=True)
        self._crew.ended(self, child.pid)
        self._deliver(end)

    def _deliver(self, end: Outcome | NotStarted | None) -> None:
        with self._lock:
            self._closed = True
            job, self._job = self._job, None
        if isinstance(end, NotStarted) and not end.trace:
            end = replace(end, trace=self._output.tail())
        if not self.tasks.done():
            self.tasks.set_result(end if isinstance(end, NotStarted) else NotStarted("it was ended"))
        if job is None:
            return
        if end is None:  # it was assigned after the idle child had been chosen to end
            end = NotStarted("the process was ended as it was given the job", again=True)
        self._crew.flush(TELL)
        job.deliver(self._with_output(end) if isinstance(end, Outcome) else end)
