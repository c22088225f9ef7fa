"""Worker processes that are forked from one which has loaded the package, a nursery for each runner of the tests.

A worker that is started as a program of its own spends most of its processor time on imports. One that is forked is as real:
it has a session, an environment, files and an end of its own. The nursery is its parent, and reports how it ended.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NoReturn

ROOT = Path(__file__).parents[2]
_PR_SET_CHILD_SUBREAPER = 36
LONGEST = 200_000  # bytes of one message
PRELOADED = ("holdfast.public", "holdfast.runtime.worker", "holdfast.child", "uvloop", "pydantic")


def plain_environment() -> dict[str, str]:
    """Ours, without what would name a database or a setting."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PG", "DATABASE_URL"))}
    return kept | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "default",
    }


class Forked:
    """As subprocess.Popen, of a process that the nursery has forked."""

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self._nursery = nursery
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        return self._nursery.ended.get(self.pid)

    def poll(self) -> int | None:
        self._nursery.listen()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = until - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self._nursery.listen(left)
        return code


class Nursery:
    """The runner's end of the line."""

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}  # pid -> exit code, of those whose end was reported
        self._lock = threading.Lock()
        self._line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.nursery", str(other.fileno())],
                pass_fds=[other.fileno()],
                env=plain_environment(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        atexit.register(self.close)

    def start(self, program: str, env: dict[str, str], log: BinaryIO) -> Forked:
        return Forked(self, self._fork({"program": program, "env": env}, [log.fileno()]))

    def adopt(self, program: str, files: list[int]) -> int:
        """The number of a process that is the runner's own child, with the runner's environment. It prints to the first of
        these files; the numbers of the others are its arguments."""
        asked = {"program": program, "env": dict(os.environ), "folder": os.getcwd(), "parent": os.getpid()}
        with self._lock:
            _adopt_orphans(True)
            try:
                return self._fork(asked, files)
            finally:
                _adopt_orphans(False)

    def _fork(self, asked: dict[str, Any], files: list[int]) -> int:
        socket.send_fds(self._line, [json.dumps(asked).encode()], files)
        while "started" not in (said := self._next(within=None)):
            pass
        pid = int(said["started"])
        self.ended.pop(pid, None)  # of an earlier process with this number
        return pid

    def listen(self, seconds: float = 0.0) -> None:
        """Take what was reported; waits so long for the first report."""
        while self._next(within=seconds):
            seconds = 0.0

    def _next(self, within: float | None) -> dict[str, Any]:
        if not select.select([self._line], [], [], within)[0]:
            return {}
        message = self._line.recv(LONGEST)
        if not message:
            raise AssertionError(f"the nursery of worker processes has ended: {self._process.wait(10)}")
        said: dict[str, Any] = json.loads(message)
        if "ended" in said:
            self.ended[said["ended"]] = said["code"]
        return said

    def close(self) -> None:
        self._line.close()
        self._process.wait(10)


@functools.cache
def nursery() -> Nursery:
    return Nursery()


def _adopt_orphans(on: bool) -> None:
    """Whoever loses its parent below us becomes our child."""
    code = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)
    assert code == 0, "this kernel has no subreapers"


# What follows runs in the nursery's own process.


def _serve(line: socket.socket) -> str:
    """Fork whoever is asked for. Returns in a forked process alone, with the program that it is to run."""
    awake, alarm = os.pipe()
    os.set_blocking(awake, False)
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    watched: list[Any] = [line, awake]
    while True:
        ready = select.select(watched, [], [])[0]
        if awake in ready:
            os.read(awake, 1000)
            _report_ends(line)
        if line not in ready:
            continue
        message, files, *_ = socket.recv_fds(line, LONGEST, 2)
        if not message:
            sys.exit(0)
        asked = json.loads(message)
        pid = _fork_orphan() if "parent" in asked else os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for file in (awake, alarm):
                os.close(file)
            line.close()
            return _become(asked, files)
        for file in files:
            os.close(file)
        line.send(json.dumps({"started": pid}).encode())


def _fork_orphan() -> int:
    """As os.fork(), of a process whose parent is gone when this returns here."""
    told, tell = os.pipe()
    between = os.fork()
    if between:
        os.close(tell)
        with os.fdopen(told) as answer:
            pid = int(answer.read())
        os.waitpid(between, 0)
        return pid
    pid = os.fork()
    if pid:
        os.write(tell, str(pid).encode())
        os._exit(0)
    os.close(told)
    os.close(tell)
    return 0


def _report_ends(line: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        line.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _become(asked: dict[str, Any], files: list[int]) -> str:
    from holdfast import failpoints

    os.setsid()
    os.dup2(files[0], 1)
    os.dup2(files[0], 2)
    os.close(files[0])
    for number, name in ((1, "stdout"), (2, "stderr")):  # ours know what kind of file was there
        setattr(sys, name, os.fdopen(number, "w", 1, "utf-8", closefd=False))
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked.get("folder", ROOT))
    until = time.monotonic() + 60
    while os.getppid() != asked.get("parent", os.getppid()):
        assert time.monotonic() < until, "not adopted"
        time.sleep(0.001)
    failpoints._arm_from_environment()
    sys.argv = ["-c", *map(str, files[1:])]
    return str(asked["program"])


def _run() -> NoReturn:
    for name in PRELOADED:
        importlib.import_module(name)
    _ = importlib.import_module("holdfast.shapes").SHAPES  # loaded when it is asked for
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as line:
        program = _serve(line)
    main = sys.modules["__main__"] = ModuleType("__main__")  # as of `python -c`: of no file and no package
    exec(compile(program, "<string>", "exec"), main.__dict__)
    sys.exit(0)


if __name__ == "__main__":
    _run()
