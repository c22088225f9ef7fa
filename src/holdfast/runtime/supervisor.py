"""The supervisor: runs no jobs itself, keeps worker processes running, and leaves when they have left.

run       the story: obey signals, reap ended children, start due ones, wait
Child     one worker process and the socket to it        (supervised.py; its own end of it: supervisor_link.py)
_ended    what the end of a child means: it left, it crashed, it cannot start
_roll_on  a rolling restart: the successor is ready before its predecessor drains

A child is a separate interpreter, never a fork, in a separate session: Ctrl-C reaches the supervisor alone, and the
children hear it from there, once.
"""

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from .. import telemetry
from ..model.backoff import Backoff
from .processes.process import ended_by
from .supervised import KILL, NEVER, Child, Command
from .supervisor_link import DRAIN, HURRY, environment_after

MISTAKE: Final = 2  # the exit code of a user's mistake: another try would end the same way
LAST: Final = 30.0  # what a worker may need after its handlers: last writes, to an unreachable database
TRIES: Final = 5  # for the first process to start at all


@dataclass(frozen=True, slots=True)
class Ending:
    """The exit code, and what to report if the children have not."""

    code: int
    message: str = ""


@dataclass(slots=True)
class ProcessSlot:
    """Where one child is to run, now and after it crashed."""

    number: int
    child: Child | None = None
    due: float = 0.0  # when to start one here; never: one runs, or it left on purpose
    failures: int = 0
    died: tuple[int | None, str] = (None, "")  # the last child here and its end; the next one reports it


class Supervisor:
    """`Supervisor(command, 4, drain=25).run()` in the first thread of a process."""

    def __init__(
        self,
        command: Command,
        size: int,
        *,
        drain: float,
        inherited: Mapping[int, int] | None = None,
        backoff: Backoff | None = None,
        steady: float = 60.0,
        adopts: bool | None = None,
    ) -> None:
        """`inherited`: place -> a descriptor its children get. `steady`: a child that lived this long did not fail to start.
        `adopts`: processes that lost their parent become ours, as they do with the first process of a container."""
        self._command = command
        self._drain = drain
        self._inherited = dict(inherited or {})
        self._backoff = backoff or Backoff(first=0.5, cap=30.0)
        self._steady = steady
        self._adopts = os.getpid() == 1 if adopts is None else adopts
        self._places = [ProcessSlot(number) for number in range(size)]
        self._children: list[Child] = []
        self._proven = False  # some child was ready: the configuration works
        self._asked = 0
        self._stage = 0
        self._roll_asked = False
        self._rolling = False
        self._roll: deque[int] = deque()
        self._successor: Child | None = None
        self._ending = Ending(0)
        self._selector = selectors.DefaultSelector()

    def run(self) -> Ending:
        """Until every child is gone. An error in here ends this process, and the children drain as if it had been killed."""
        telemetry.emit("supervisor.started", pid=os.getpid(), processes=len(self._places))
        with self._on_signals():
            while True:
                self._obey()
                self._reap()
                self._act(time.monotonic())
                if self._is_over():
                    break
                self._wait()
        telemetry.emit("supervisor.stopped", pid=os.getpid(), code=self._ending.code)
        return self._ending

    # Signals --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _on_signals(self) -> Iterator[None]:
        """Handlers only note the signal; a byte in the pipe ends the wait."""
        wake, bell = socket.socketpair()
        for end in (wake, bell):
            end.setblocking(False)
        self._selector.register(wake, selectors.EVENT_READ)
        wanted = {signal.SIGTERM: self._on_stop, signal.SIGINT: self._on_stop, signal.SIGCHLD: _only_wake}
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
            wanted[signal.SIGHUP] = self._on_stop if _has_terminal() else self._on_roll
        before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        wakeup = signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            wake.close()
            bell.close()

    def _on_stop(self, *_: object) -> None:
        self._asked += 1

    def _on_roll(self, *_: object) -> None:
        self._roll_asked = True

    def _obey(self) -> None:
        stage = min(self._asked, KILL)
        if stage > self._stage:
            self._stop(stage)
        if self._roll_asked and not self._stage:
            self._roll_asked, self._rolling = False, True
            self._roll = deque(place.number for place in self._places)
            telemetry.emit("supervisor.rolling", processes=len(self._places))

    def _stop(self, stage: int) -> None:
        self._stage = stage
        words = {DRAIN: "drain", HURRY: "leave at once", KILL: "kill"}
        telemetry.emit("supervisor.stopping", how=words[stage], processes=len(self._children))
        for child in self._children:
            self._order(child, stage)

    def _order(self, child: Child, stage: int) -> None:
        child.order(stage, LAST + (self._drain if stage == DRAIN else 0.0))

    # Ends -----------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        for child in list(self._children):
            code = child.exit_code()
            if code is not None:
                self._hear(child)  # its last words may have arrived with its end
                self._forget(child)
                self._ended(child, code)
        if self._adopts:
            self._reap_strays()

    def _reap_strays(self) -> None:
        """No other process reaps them, and they would stay as zombies."""
        mine = {child.pid for child in self._children}
        while (stray := _peek()) is not None and stray not in mine:
            os.waitpid(stray, 0)

    def _hear(self, child: Child) -> bool:
        more = child.hear()
        self._proven = self._proven or child.ready_at is not None
        return more

    def _forget(self, child: Child) -> None:
        self._children.remove(child)
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.link)
        child.link.close()

    def _ended(self, child: Child, code: int) -> None:
        place = self._places[child.place]
        if child is self._successor:
            self._successor = None
            if not self._stage:
                self._end_roll(f"the new process did not get ready: {ended_by(code)}")
        elif child is not place.child:  # its successor runs already
            self._say_end(child, code)
        else:
            place.child = None
            if self._stage:
                self._say_end(child, code)
            elif self._successor is not None and self._successor.place == place.number:
                self._say_end(child, code)
                place.child, self._successor = self._successor, None
            elif code == 0:  # idle, or drained by an operator: it meant to leave
                self._say_end(child, code)
            else:
                self._failed(place, child, ended_by(code), code)

    def _say_end(self, child: Child, code: int) -> None:
        clean = code == 0 or (child.stage > 0 and not child.listens)
        if not clean and self._stage and not self._ending.code:
            self._ending = Ending(1)
        level = logging.INFO if clean else logging.WARNING
        telemetry.emit("supervisor.child_left", level=level, pid=child.pid, how=ended_by(code))

    def _failed(self, place: ProcessSlot, child: Child | None, how: str, code: int = 1) -> None:
        ready_at = None if child is None else child.ready_at
        if child is not None:
            place.died = child.pid, how
        lived = 0.0 if ready_at is None else time.monotonic() - ready_at
        place.failures = 1 if lived >= self._steady else place.failures + 1
        if code == MISTAKE and ready_at is None and not any(c.ready_at for c in self._children):
            self._give_up(Ending(MISTAKE))
        elif not self._proven and place.failures >= TRIES:
            self._give_up(Ending(1, f"no worker process gets ready, after {TRIES} tries: {how}"))
        else:
            pause = self._backoff.delay(place.failures)
            place.due = time.monotonic() + pause
            telemetry.emit(
                "supervisor.child_died",
                level=logging.ERROR,
                pid=None if child is None else child.pid,
                error=how,
                next_try_in=round(pause, 2),
            )

    def _give_up(self, ending: Ending) -> None:
        self._ending = ending
        self._stop(DRAIN)

    # Starts ---------------------------------------------------------------------------------------------------------

    def _act(self, now: float) -> None:
        for child in self._children:
            if now >= child.deadline:
                error = "it did not leave in time, and is killed"
                telemetry.emit("supervisor.child_late", level=logging.ERROR, pid=child.pid, error=error)
                child.kill()
        if self._stage:
            return
        for place in self._startable():
            if now >= place.due:
                place.due = NEVER
                place.child = self._spawn(place)
        self._roll_on()

    def _startable(self) -> list[ProcessSlot]:
        """Start one place alone until a first child was ready, so that a mistake is made and reported once."""
        waiting = [place for place in self._places if place.due != NEVER]
        if self._proven:
            return waiting
        return [] if self._children else waiting[:1]

    def _spawn(self, place: ProcessSlot) -> Child | None:
        try:
            return self._begin(place)
        except OSError as error:
            self._failed(place, None, f"no process can be started: {error}")
            return None

    def _begin(self, place: ProcessSlot) -> Child:
        inherited = [self._inherited[place.number]] if place.number in self._inherited else []
        child = Child(place.number, self._command, inherited, environment_after(*place.died))
        place.died = (None, "")
        self._children.append(child)
        self._selector.register(child.link, selectors.EVENT_READ, child)
        telemetry.emit("supervisor.child_started", level=logging.DEBUG, pid=child.pid, place=place.number)
        return child

    def _roll_on(self) -> None:
        """One place after the other: never fewer workers than before, and never more than one beyond them."""
        if self._successor is not None and self._successor.ready_at is not None:
            place = self._places[self._successor.place]
            old, place.child, self._successor = place.child, self._successor, None
            place.failures = 0
            if old is not None:
                self._order(old, DRAIN)
        changing = any(child is not self._places[child.place].child for child in self._children)
        while self._roll and self._proven and not changing:
            place = self._places[self._roll.popleft()]
            if place.child is not None:  # else it is empty, or the next to start there is new anyway
                self._successor = self._spawn_successor(place)
                changing = True
        if self._rolling and not self._roll and not changing:
            self._rolling = False
            telemetry.emit("supervisor.rolled", processes=len(self._places))

    def _spawn_successor(self, place: ProcessSlot) -> Child | None:
        try:
            return self._begin(place)
        except OSError as error:
            self._end_roll(f"no process can be started: {error}")
            return None

    def _end_roll(self, why: str) -> None:
        self._roll.clear()
        self._rolling = False
        telemetry.emit(
            "supervisor.roll_failed", level=logging.ERROR, error=f"{why}. The others stay as they are"
        )

    # The wait -------------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        return not self._children and (self._stage > 0 or all(p.due == NEVER for p in self._places))

    def _wait(self) -> None:
        times = [child.deadline for child in self._children]
        if not self._stage:
            times += [place.due for place in self._startable()]
        first = min(times, default=NEVER)
        timeout = None if first == NEVER else max(0.0, first - time.monotonic())
        for key, _ in self._selector.select(timeout):
            if isinstance(key.data, Child):
                if not self._hear(key.data):
                    self._selector.unregister(key.data.link)
            elif isinstance(key.fileobj, socket.socket):
                with contextlib.suppress(BlockingIOError):
                    key.fileobj.recv(4096)


def _only_wake(*_: object) -> None:
    """The signal has written its byte."""


def _has_terminal() -> bool:
    """At a terminal SIGHUP means that it was closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _peek() -> int | None:
    """A process that has ended and waits to be reaped here."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid
