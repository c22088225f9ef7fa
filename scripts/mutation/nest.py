"""A process that has loaded pytest and its libraries, and nothing of ours: it forks one run of tests after the other.
A second one has loaded the package of one tree, too, for runs in which no Python of it is changed.

It reads requests, one JSON object per line, and writes what came of them. It also ends whatever a run leaves behind. Run as
`python -m scripts.mutation.nest`; `Nest` is the other end.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from scripts.mutation.inside import Prepared, Recorder

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = (
    "psycopg",
    "typer.testing",
    "hypothesis",
    "cronsim",
    "tomllib",
    "concurrent.futures.thread",
    "asyncio",
)
PACKAGE = ("holdfast.public", "holdfast.testing", "holdfast.testing.plugin", "holdfast.runtime.worker")
END_WITH_PARENT = 1  # PR_SET_PDEATHSIG: an asker that was killed leaves nobody behind
BECOME_REAPER = 36  # PR_SET_CHILD_SUBREAPER: what a run leaves behind becomes a child of ours
POLL = 0.01
ENDING = 3.0  # seconds for a server to leave by itself


@dataclass(frozen=True)
class Request:
    tree: str
    words: list[str]  # pytest's
    env: dict[str, str]
    out: str  # the file for what is printed; what programs complain of goes to one beside it
    limit: float  # seconds, after which the run is killed
    record: str = ""  # the file for the tests that were run, their outcome and their seconds
    start: str = ""  # the database to begin with
    server: str = ""  # the folder of the server that has it
    migrates: bool = False  # whether migrations are applied to it
    writes: bool = False  # bytecode
    fresh: bool = False  # in a new interpreter, with a server of its own


@dataclass(frozen=True)
class Reply:
    code: int
    seconds: float
    cpu: float
    late: bool


class Nest:
    """The asker's end. One run at a time."""

    def __init__(self, tree: str = "", env: dict[str, str] | None = None) -> None:
        """With a tree, its package is loaded in that environment before the first request."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scripts.mutation.nest", *([tree] if tree else [])],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C is for the asker
        )

    def run(self, request: Request) -> Reply:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"the process that runs tests has ended: {self._process.wait(10)}")
        return Reply(**json.loads(said))

    def close(self) -> None:
        with self._process:
            self._process.terminate()


# What follows runs in the nest's own process.


def _children() -> dict[int, str]:
    """Every process below this one, by its name."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text(errors="replace")
            except OSError:
                continue
            name, _, rest = stat.partition("(")[2].rpartition(")")
            if rest.split()[0] not in "ZX":
                parents[int(entry)] = (int(rest.split()[1]), name)
    found: dict[int, str] = {}
    layer = {os.getpid()}
    while layer:
        layer = {pid for pid, (parent, _) in parents.items() if parent in layer}
        found |= {pid: parents[pid][1] for pid in layer}
    return found


def _end_children() -> None:
    """A server is asked first: killed, it leaves shared memory behind."""
    until = time.monotonic() + ENDING
    while found := _children():
        late = time.monotonic() > until
        for pid, name in found.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT if name == "postgres" and not late else signal.SIGKILL)
        _reap()
        time.sleep(POLL)
    _reap()


def _reap() -> dict[int, tuple[int, float]]:
    """Those that have ended: exit code and seconds of processor time."""
    ended: dict[int, tuple[int, float]] = {}
    while True:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = (os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)


def _serve() -> Request:
    """Fork for each request. Returns in a forked process alone."""
    signal.signal(signal.SIGTERM, lambda *_: _leave())
    for line in sys.stdin:
        request = Request(**json.loads(line))
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            return request
        code, cpu, late = _wait(pid, began + request.limit)
        _end_children()
        print(json.dumps(asdict(Reply(code, time.monotonic() - began, cpu, late))), flush=True)
    return _leave()


def _wait(pid: int, until: float) -> tuple[int, float, bool]:
    late = False
    while True:
        ended = _reap()
        if pid in ended:
            return *ended[pid], late
        if time.monotonic() > until and not late:
            late = True
            os.kill(pid, signal.SIGKILL)
        time.sleep(POLL)


def _leave() -> NoReturn:
    _end_children()
    os._exit(0)


def _become(request: Request) -> list[Any]:
    """Be as a process that was just started as `python -m pytest` in that tree; returns what it needs of ours."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    out, error = (
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for path in (request.out, f"{request.out}.error")
    )
    for theirs, ours in ((nothing, 0), (out, 1), (error, 2)):
        os.dup2(theirs, ours)
        os.close(theirs)
    os.chdir(request.tree)
    if request.fresh:
        os.execve(sys.executable, [sys.executable, "-m", "pytest", *request.words], request.env)
    os.environ.clear()
    os.environ.update(request.env)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - ours is the line of requests
    sys.dont_write_bytecode = not request.writes
    _look_in(request.tree)
    tempfile.tempdir = None
    random.seed()
    sys.argv = [str(Path(sys.modules["pytest"].__file__ or "").with_name("__main__.py")), *request.words]
    sys.modules["__main__"] = ModuleType("__main__")
    plugins: list[Any] = [Recorder(request.record)] if request.record else []
    if request.start:
        plugins.append(Prepared(Path(request.server), request.start, migrates=request.migrates))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("scripts", "tests")]:
        del sys.modules[name]
    return plugins


def _look_in(tree: str) -> None:
    """For modules: as `python -m pytest` in the tree, with its sources in PYTHONPATH."""
    known = ("", str(ROOT), f"{ROOT}/src", tree, f"{tree}/src")
    sys.path[:] = [tree, f"{tree}/src", *(path for path in sys.path if path not in known)]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()


def _load() -> None:
    import pytest  # noqa: F401

    for name in (*PRELOADED, *(found.module for found in entry_points(group="pytest11"))):
        if name.partition(".")[0] != "holdfast":
            importlib.import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] == "holdfast"]
    assert not ours, f"a mutant of these would not be seen: {ours}"


def _load_package(tree: str) -> None:
    """Whatever is read now would not be seen when it is changed later: this may be modules alone."""
    read: list[str] = []
    begun = True

    def note(event: str, details: tuple[Any, ...]) -> None:
        if begun and event == "open" and isinstance(details[0], str) and details[0].startswith(f"{tree}/"):
            read.append(details[0])

    sys.addaudithook(note)  # it cannot be taken away
    _look_in(tree)
    for name in PACKAGE:
        importlib.import_module(name)
    _ = importlib.import_module("holdfast.shapes").SHAPES  # loaded when it is asked for
    begun = False
    others = [path for path in read if not path.endswith((".py", ".pyc")) and ".pyc." not in path]
    assert not others, f"a mutant of these would not be seen: {others}"
    assert threading.active_count() == 1, "a forked process has one thread"


def _main() -> NoReturn:
    if sys.platform == "linux":
        system = ctypes.CDLL(None)
        system.prctl(BECOME_REAPER, 1, 0, 0, 0)
        system.prctl(END_WITH_PARENT, signal.SIGTERM, 0, 0, 0)
    _load()
    if tree := "".join(sys.argv[1:2]):
        _load_package(tree)
    gc.collect()
    gc.freeze()
    request = _serve()
    plugins = _become(request)
    run = sys.modules["pytest"].main
    sys.exit(run(["-W", "ignore::pytest.PytestAssertRewriteWarning", *request.words], plugins=plugins))


if __name__ == "__main__":
    _main()
