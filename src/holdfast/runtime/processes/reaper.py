"""The reaper: a tiny process that outlives its worker by a moment, and kills the child processes it left.

A child sees by itself that its worker is gone, unless it is stopped or stuck in C code that never lets go of the
interpreter. A signal on the parent's death (Linux only) would kill the child, but before it could end the programs
that it had started. The reaper ends whole process groups and families, whatever they do. It runs as a script and
imports nothing of Holdfast, so it starts in milliseconds.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading

_ROUNDS = 20  # a family that starts processes faster than they are stopped


def family(pid: int) -> list[int]:
    """A process, its children, and theirs. Only Linux reports them; elsewhere only the process itself."""
    found = [pid]
    for each in found:  # it grows on the way
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{thread}/children", encoding="ascii") as children:
                    found += [int(word) for word in children.read().split()]
    return found


def kill_family(pid: int, *, spare: bool = False) -> None:
    """Kill everything that a process started, also in other sessions, and then the process with its group.

    They are stopped first, parents before children, so that none can start another. `spare`: the process itself survives.
    """
    stopped: list[int] = []
    for _ in range(_ROUNDS):
        fresh = [each for each in family(pid)[spare:] if each not in stopped]
        if not fresh:
            break
        for each in fresh:
            _signal(each, signal.SIGSTOP)
        stopped += fresh
    for each in reversed(stopped):
        _signal(each, signal.SIGKILL)
    if not spare:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


class Reaper:
    """The worker's side: names the process groups to kill when the worker is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._groups: set[int] = set()

    def keep(self, group: int) -> None:
        with self._lock:
            self._groups.add(group)
            if self._process is not None and self._process.poll() is not None:  # it was killed
                self._forget_process()
            if self._process is None:
                self._start()
                for each in self._groups:
                    self._say(f"+{each}\n")
            else:
                self._say(f"+{group}\n")

    def forget(self, group: int) -> None:
        with self._lock:
            self._groups.discard(group)
            self._say(f"-{group}\n")

    def close(self) -> None:
        with self._lock:
            self._forget_process()

    def _forget_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            os.close(self._pipe)
            self._pipe = -1
            process.wait()

    def _start(self) -> None:
        theirs, ours = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(theirs), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs],
                start_new_session=True,
                cwd="/",
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._pipe = ours

    def _say(self, line: str) -> None:
        if self._pipe >= 0:
            with contextlib.suppress(OSError):  # it was killed: the children still watch by themselves
                os.write(self._pipe, line.encode())


def watch(pipe: int, worker: int) -> set[int]:
    """Until the worker is gone: its end of the pipe is closed, or the parent changed while others hold the pipe."""
    groups: set[int] = set()
    rest = b""
    while True:
        orphan = os.getppid() != worker
        if not select.select([pipe], [], [], 0.0 if orphan else 1.0)[0]:
            if orphan:
                break
            continue
        data = os.read(pipe, 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    return groups


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for group in watch(int(sys.argv[1]), int(sys.argv[2])):
        kill_family(group)


if __name__ == "__main__":
    main()
