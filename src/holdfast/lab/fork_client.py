"""Where worker processes come from: one process that has imported everything, and forks. So a worker is there at once.

This is the lab's side; fork_server.py is the process.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError

_PATIENCE = 60.0  # seconds until it must have answered


def clean_environment() -> dict[str, str]:
    """For the lab's processes: nothing in it names a database or a setting of somebody else's."""
    foreign = ("HOLDFAST_", "PG", "DATABASE_URL")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


class ForkClient:
    """The lab's side of it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.lab.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environment(),
            process_group=0,
        )
        self._changed = threading.Condition()
        self._came: dict[int, int] = {}  # by the number of the order: its pid
        self._ended: dict[int, int] = {}  # by pid: its exit code
        self._orders = 0
        self._ear = threading.Thread(target=self._listen, name="forks", daemon=True)
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
