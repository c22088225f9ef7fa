"""Where worker processes come from: one process that has imported everything, and forks. So a worker is there at once.

`python -m holdfast.lab.nursery` reads orders from its standard input, one JSON line each, and says in one line each which
process came and how one ended. When its input ends, that is with the lab, it ends its children and itself.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from holdfast.errors import HoldfastError

_LOOK = 0.05  # seconds between two looks for children that ended
_PATIENCE = 60.0  # seconds until it must have answered


def clean_environment() -> dict[str, str]:
    """For the lab's processes: nothing in it names a database or a setting of somebody else's."""
    foreign = ("HOLDFAST_", "PG", "DATABASE_URL")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


class Nursery:
    """The lab's side of it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.lab.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environment(),
            process_group=0,
        )
        self._changed = threading.Condition()
        self._came: dict[int, int] = {}  # by the number of the order: its pid
        self._ended: dict[int, int] = {}  # by pid: its exit code
        self._orders = 0
        self._ear = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._ear.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._changed:
                if "order" in said:
                    self._came[said["order"]] = said["pid"]
                    self._ended.pop(said["pid"], None)
                else:
                    self._ended[said["ended"]] = said["code"]
                self._changed.notify_all()

    def start(self, scene: str, environment: Mapping[str, str], log: Path) -> int:
        """A worker of the scene; returns its pid."""
        with self._changed:
            self._orders += 1
            mine = self._orders
            self._send({"order": mine, "scene": scene, "environment": dict(environment), "log": str(log)})
            if not self._changed.wait_for(lambda: mine in self._came, _PATIENCE):
                raise HoldfastError(f"no worker came within {_PATIENCE:g} s")
            return self._came[mine]

    def _send(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def code(self, pid: int) -> int | None:
        """How it ended; None: it has not."""
        return self._ended.get(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ear.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


# The process itself -------------------------------------------------------------------------------------------------


def _say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _become(order: dict[str, Any]) -> NoReturn:
    """In the child: a worker, in a group of its own, with a log of its own."""
    os.setpgid(0, 0)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for place, file in ((0, nothing), (1, log), (2, log)):
        os.dup2(file, place)
    os.environ.update(order["environment"])
    code = 1
    try:
        from holdfast.lab.worker import main

        main(order["scene"])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 it goes into the log, and no further
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap(children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        children.discard(pid)
        _say(ended=pid, code=os.waitstatus_to_exitcode(status))


def run() -> None:
    import holdfast.lab.worker  # noqa: F401 once, for all of them
    from holdfast.lab.scenes import all_scenes

    all_scenes()
    children: set[int] = set()
    ready = selectors.DefaultSelector()
    ready.register(0, selectors.EVENT_READ)
    rest = b""
    while True:
        _reap(children)
        if not ready.select(_LOOK):
            continue
        piece = os.read(0, 65536)
        if not piece:
            break
        *orders, rest = (rest + piece).split(b"\n")
        for line in orders:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _become(order)
            children.add(pid)
            _say(order=order["order"], pid=pid)
    for pid in children:  # not reaped yet, so the number is theirs
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    run()
