"""The minder: a tiny process that outlives its worker by a moment, and kills the child processes it left.

A child sees by itself that its worker is gone, unless it is stopped or stuck in C code that never lets go of the
interpreter. A signal on the parent's death (Linux only) would kill the child, but before it could take along what
it had started itself. The minder ends whole process groups, whatever they do. It is run as a script and
imports nothing of ours, so it starts in milliseconds.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading


class Minder:
    """The worker's side: names the process groups to kill when the worker is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def keep(self, group: int) -> None:
        with self._lock:
            if self._process is None:
                self._start()
            self._say(f"+{group}\n")

    def forget(self, group: int) -> None:
        with self._lock:
            self._say(f"-{group}\n")

    def close(self) -> None:
        with self._lock:
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
            with contextlib.suppress(OSError):  # somebody killed it: the children still watch by themselves
                os.write(self._pipe, line.encode())


def watch(pipe: int, worker: int) -> set[int]:
    """Until the worker is gone: its end of the pipe closed, or another parent here if somebody else kept that open."""
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
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
