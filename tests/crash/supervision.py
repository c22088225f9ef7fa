"""A supervisor in a process of its own, over children that start in milliseconds and do what a file says."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import wait_until, within
from tests.crash.process import lines

ROOT = Path(__file__).parents[2]

SUPERVISOR = """
import ctypes, json, sys
from pathlib import Path
from holdfast import telemetry
from holdfast.model.backoff import Backoff
from holdfast.runtime import supervisor

folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])


def write(event):
    with (folder / "events").open("a") as file:
        file.write(json.dumps({"name": event.name, **{k: str(v) for k, v in event.fields.items()}}) + "\\n")


telemetry.subscribe(write)
supervisor.LAST = options.pop("last", 30.0)
if options.get("adopts"):
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: like the first process of a container
size, drain = options.pop("size", 2), options.pop("drain", 20.0)
program = options.pop("program", sys.executable)


def command(place, link):
    return [program, "-S", "-E", "-c", (folder / "child.py").read_text(), str(folder), str(place), str(link)]


backoff = Backoff(first=0.05, cap=0.2, jitter=False)
ending = supervisor.Supervisor(command, size, drain=drain, backoff=backoff, **options).run()
print(ending.message)
sys.exit(ending.code)
"""

# What it does is in the file of its place, else in the file for all.
CHILD = """
import json, os, signal, socket, sys, time
folder, place, link = sys.argv[1], int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3]))


def note(what):
    line = json.dumps({"what": what, "place": place, "pid": os.getpid()}) + "\\n"
    file = os.open(folder + "/notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


def mode():
    for name in ("mode-%d" % place, "mode"):
        if os.path.exists(folder + "/" + name):
            return open(folder + "/" + name).read()
    return "good"


how = mode()
note("start")
if how == "mistake":
    sys.exit(2)
if how == "broken":
    sys.exit(7)
if how == "importing":
    time.sleep(600)
if how == "stray":
    if os.fork() == 0:
        if os.fork() == 0:
            note("stray")
            os._exit(0)
        os._exit(0)
    os.wait()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: note("signal %d" % number))
link.send(b"l")
note("ready")
try:
    link.send(b"r")
except OSError:
    pass  # the supervisor is gone already
if how == "crash":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "leave":
    sys.exit(0)
while orders := link.recv(1):
    note("order %d" % orders[0])
    if orders[0] == (2 if mode() == "slow" else 99 if mode() == "deaf" else 1):
        sys.exit(0)
note("alone")
"""


def has_ended(pid: int) -> bool:
    """Also when nobody has reaped it."""
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


class Supervision:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "child.py").write_text(CHILD)
        self._process: subprocess.Popen[str] | None = None

    def behave(self, mode: str, place: int | None = None) -> None:
        name = "mode" if place is None else f"mode-{place}"
        (self.folder / f"{name}.new").write_text(mode)
        (self.folder / f"{name}.new").rename(self.folder / name)

    def start(self, *, terminal: bool = False, **options: Any) -> "Supervision":
        """`terminal`: in a terminal of its own, which is closed when `process` is killed."""
        inside = [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"] if terminal else []
        self._process = subprocess.Popen(
            [*inside, sys.executable, "-c", SUPERVISOR, str(self.folder), json.dumps(options)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    @property
    def process(self) -> "subprocess.Popen[str]":
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        """Its exit code and what it printed."""
        try:
            printed, _ = self.process.communicate(timeout=within(20))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running: {self.events()} {self.notes()}") from None
        return self.process.returncode, printed.strip()

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        return [e for e in lines(self.folder / "events") if name in (None, e["name"])]

    def notes(self, what: str | None = None, place: int | None = None) -> list[dict[str, Any]]:
        found = lines(self.folder / "notes")
        return [n for n in found if what in (None, n["what"]) and place in (None, n["place"])]

    def until_noted(self, what: str, count: int = 1, place: int | None = None) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.notes(what, place)) >= count, f"{count} notes {what!r}")
        return self.notes(what, place)

    def until_event(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.events(name)) >= count, f"{count} events {name!r}")
        return self.events(name)

    def said_to(self, pid: int) -> list[str]:
        """What a child was told, by order or by signal."""
        return [n["what"] for n in self.notes() if n["pid"] == pid and n["what"][:5] in ("order", "signa")]

    def end(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait(50)
            if self._process.stdout:
                self._process.stdout.close()
        supervisors = [int(event["pid"]) for event in self.events("supervisor.started")]
        for pid in (*supervisors, *(note["pid"] for note in self.notes("start"))):
            if not has_ended(pid):
                os.kill(pid, signal.SIGKILL)
