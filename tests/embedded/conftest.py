"""Real servers in throw-away folders, and real processes that use them.

`folder` can be entered by every user, so that the server of a root process can live in it. `user` starts a
process that takes a hold, says so, and does what it is told by lines on its standard input.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.conftest import within

from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer, reset, status
from holdfast.db.embedded.place import POINTER
from holdfast.errors import EmbeddedError

ROOT = Path(__file__).parents[2]
IMPORTS = os.pathsep.join([str(ROOT / "src"), *(path for path in sys.path if path.endswith("site-packages"))])
FAST = EmbeddedOptions(durable=False)
USER = """
import json, os, sys
from pathlib import Path
from holdfast.db.embedded import EmbeddedOptions, shared
path, options = Path(sys.argv[1]), EmbeddedOptions(durable=False)
try:
    server = shared(path, options)
except Exception as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
    sys.exit(3)
def say(**facts):
    print(json.dumps({"server": server.pid, "dsn": server.dsn("postgres"), **facts}), flush=True)
say()
for line in sys.stdin:
    word = line.strip()
    if word == "ensure":
        server.ensure_running()
        say()
    elif word == "fork-and-exit":  # a child that ends at once, running its exit handlers
        child = os.fork()
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        say()
    elif word == "fork-own":  # a child with a hold of its own, which outlives us
        child = os.fork()
        if child == 0:
            mine = shared(path, options)
            say(child=True)
            while Path(path.parent / "stay").exists():
                import time; time.sleep(0.01)
            sys.exit(0)
    elif word == "exit":
        break
"""


def eventually(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait for a condition, and fail when it does not come."""
    deadline = time.monotonic() + within(seconds)
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


class User:
    """A process that uses the embedded server."""

    def __init__(self, path: Path, env: dict[str, str] | None = None, login: str | None = None) -> None:
        environment = os.environ | {"PYTHONPATH": IMPORTS} | (env or {})
        command = [sys.executable, "-c", USER, str(path)]
        if login is not None:
            command, environment = as_login(login, command, environment)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd="/"
        )

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        heard: dict[str, Any] = json.loads(self.process.stdout.readline())
        return heard

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def leave(self) -> None:
        self.tell("exit")
        assert self.process.wait(timeout=150) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=150)

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def as_login(login: str, command: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The same command as another user, with a Python that this user can run."""
    drop = ["setpriv", f"--reuid={login}", f"--regid={login_group(login)}", "--clear-groups", "--"]
    env = env | {"PYTHONPATH": IMPORTS, "PYTHONDONTWRITEBYTECODE": "1"}
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/bin") or ""):
        same = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
        tried = subprocess.run(
            [*drop, python, "-c", same], env=env, cwd="/", capture_output=True, check=False
        )
        if tried.returncode == 0:
            return [*drop, python, *command[1:]], env
    needs(False, f"no Python {sys.version_info[0]}.{sys.version_info[1]} that user {login!r} can run")
    raise AssertionError


def login_group(login: str) -> str:
    return subprocess.run(["id", "-g", login], capture_output=True, text=True, check=True).stdout.strip()


def needs(there: bool, reason: str) -> None:
    """Skip with a reason on a developer's machine; in CI a missing part is a failure."""
    if not there and os.environ.get("CI"):
        pytest.fail(f"CI must have it: {reason}")
    if not there:
        pytest.skip(reason)


class Start(Protocol):
    def __call__(self, path: Path, env: dict[str, str] | None = None, login: str | None = None) -> User: ...


@pytest.fixture
def user() -> Iterator[Start]:
    started: list[User] = []

    def start(path: Path, env: dict[str, str] | None = None, login: str | None = None) -> User:
        started.append(User(path, env, login))
        return started[-1]

    yield start
    for one in started:
        one.end()


def disk() -> str:
    """Memory, if there is enough of it: most of the time of these tests goes into copying small files."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 2**30 else "/tmp"


@contextmanager
def new_folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="hf-", dir=disk()))
    path.chmod(0o755)
    yield path
    for mark in [*path.rglob("start.lock"), *path.rglob(POINTER)]:
        try:
            reset(mark.parent, force=True)
        except EmbeddedError as error:
            print(f"left behind: {error}")
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    with new_folder() as path:
        yield path


@pytest.fixture
def home(folder: Path) -> Path:
    """Where a test's server goes; nothing is there yet."""
    return folder / ".holdfast" / "postgres"


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    """A server that was made and stopped, to be copied: initdb takes most of the time of a test."""
    with new_folder() as path:
        EmbeddedServer.acquire(path / "postgres", FAST).release()
        yield path / "postgres"


@pytest.fixture
def ready(home: Path, template: Path) -> Path:
    """`home`, with a stopped server in it."""
    home.parent.mkdir()
    subprocess.run(["cp", "-a", str(template), str(home)], check=True)
    return home


@pytest.fixture
def server(ready: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.acquire(ready, FAST) as held:
        yield held


@pytest.fixture
def as_root() -> None:
    needs(os.geteuid() == 0, "only root can become somebody else")


def is_stopped(path: Path) -> bool:
    return status(path).state == "stopped"


def kill(pid: int | None) -> None:
    assert pid
    os.kill(pid, signal.SIGKILL)
