"""One child process: its socket, what it prints, and its end. Every wait here has a limit that its caller sets."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence

from .frames import Frame, Unpacker, pack
from .reaper import kill_family

LATE = signal.SIGXCPU  # at this signal a child prints its stacks; the kill follows
_READS = 16  # of 64 KB
_EXIT = 1.0  # from the closed socket to the exit code
_KILL = 5.0  # a process that is stuck in the kernel dies when it returns from there


class ChildProcess:
    def __init__(self, command: Sequence[str]) -> None:
        self._link, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a group to kill, and no signals from the terminal
            )
        except BaseException:
            self._link.close()
            raise
        finally:
            theirs.close()
        assert self._process.stdout is not None
        self._printed = self._process.stdout
        self._bell, self._button = socket.socketpair()
        for each in (self._link, self._printed, self._bell, self._button):
            os.set_blocking(each.fileno(), False)
        self._pidfd = _pidfd(self.pid)
        self._selector = selectors.DefaultSelector()
        for each in (self._link, self._printed, self._bell):
            self._selector.register(each, selectors.EVENT_READ)
        if self._pidfd is not None:
            self._selector.register(self._pidfd, selectors.EVENT_READ)
        self._outgoing = bytearray()
        self._wanted = selectors.EVENT_READ  # of the socket
        self._ready: frozenset[object] = frozenset()  # what the last wait() found
        self._unpacker = Unpacker()
        self.hung_up = False  # it closed its end of the socket
        self._is_killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, seconds: float | None) -> None:
        """Until it sends or prints something, ends, or `wake` is called."""
        if self._pidfd is None:
            seconds = 0.5 if seconds is None else min(seconds, 0.5)
        self._ready = frozenset(key.fileobj for key, _ in self._selector.select(seconds))
        if self._bell in self._ready:
            with contextlib.suppress(BlockingIOError):
                self._bell.recv(4096)
        if self._outgoing:
            self._write()

    @property
    def speaks(self) -> bool:
        """Whether the last wait() ended because of the socket: a frame, or its end."""
        return self._link in self._ready

    @property
    def prints(self) -> bool:
        return self._printed in self._ready

    @property
    def may_have_ended(self) -> bool:
        """Where the kernel reports an end, only when it did."""
        return self.hung_up or self._pidfd is None or self._pidfd in self._ready

    def wake(self) -> None:
        """From any thread, as long as it is not closed."""
        with contextlib.suppress(BlockingIOError):
            self._button.send(b"x")

    def send(self, frame: Frame) -> None:
        self._outgoing += pack(frame)
        self._write()

    def _write(self) -> None:
        """As much as the socket takes now: a child that does not read must not block its thread."""
        try:
            while self._outgoing:
                del self._outgoing[: self._link.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()
            self.hung_up = True
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        if wanted != self._wanted and not self.hung_up:
            self._wanted = wanted
            self._selector.modify(self._link, wanted)

    def receive(self) -> Iterator[Frame]:
        """Frames that have arrived, at most a socket buffer: a child that never stops must not keep its thread busy.
        BadFrame: the bytes are no frames."""
        for _ in range(_READS):
            try:
                data = self._link.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.hung_up = True
                return
            yield from self._unpacker.feed(data)

    def read_output(self) -> bytes:
        """Its output, at most a pipe buffer."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while len(data) < 65536:
                if not (more := os.read(self._printed.fileno(), 65536)):
                    self._forget_output()
                    break
                data += more
        return data

    def _forget_output(self) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._printed)

    def has_exited(self) -> bool:
        """Its exit code stays unread, if possible: until then no other process can get its pid."""
        if self._process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):  # macOS
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # other code has reaped it
            return True

    def exit_code(self) -> int:
        """How it ended by itself, if it did; the rest of its group is killed."""
        deadline = time.monotonic() + _EXIT
        while not self.has_exited() and time.monotonic() < deadline:
            time.sleep(0.002)
        return self.kill()

    def ask_where(self) -> None:
        """Its threads are read while they run, so that may crash it: only for one that is about to be killed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, LATE)

    def kill(self) -> int:
        """End it, everything that it started, and everything in its group."""
        if not self._is_killed:
            self._is_killed = True
            kill_family(self.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL)
        return -signal.SIGKILL if self._process.returncode is None else self._process.returncode

    def close(self) -> None:
        self._process.wait()
        self._selector.close()
        for each in (self._link, self._printed, self._bell, self._button):
            each.close()
        if self._pidfd is not None:
            os.close(self._pidfd)


def _pidfd(pid: int) -> int | None:
    """A file that becomes readable when the process ends; only Linux has it, and a sandbox may refuse it."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def ended_by(code: int, out_of_memory: bool = False) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"the process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    hint = "; the kernel was killing processes because memory had run out" if out_of_memory else ""
    return f"the process was killed by signal {-code} ({name}){hint}"
