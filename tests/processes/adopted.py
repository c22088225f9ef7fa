"""Child processes of a worker in the runner, forked from one that has loaded the package (tests/crash/nursery.py).

A child that is started as a program of its own spends half a second of a core on imports, and these tests start hundreds.
One that is forked has a session, files and an end of its own too, and the runner is its parent. What is said of the start
itself is tried with real ones: test_start.py, test_worker_gone.py, and where `started` is asked for."""

import os
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.crash.nursery import nursery

from holdfast.runtime.processes import process

_PROGRAM = "import sys; from holdfast.child import load, run; run(int(sys.argv[1]), load)"


class Adopted(subprocess.Popen[bytes]):
    """As Popen makes it, of a child that is there already."""

    def __init__(self, command: Sequence[str], link: int) -> None:
        self.returncode = None
        self._child_created = False
        ours, theirs = os.pipe()
        self.stdin = self.stderr = None
        self.stdout = os.fdopen(ours, "rb", buffering=0)
        try:
            self.pid = nursery().adopt(_PROGRAM, [theirs, link])
        except BaseException:
            self.stdout.close()
            raise
        finally:
            os.close(theirs)
        self.args = list(command)
        self._waitpid_lock = threading.Lock()
        self._child_created = True


def _popen(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    if "holdfast.child" not in command:
        return subprocess.Popen(command, **options)
    return Adopted(command, options["pass_fds"][0])


class _Subprocess:
    """The module, as process.py sees it."""

    def __getattr__(self, name: str) -> Any:
        return _popen if name == "Popen" else getattr(subprocess, name)


@pytest.fixture
def adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    nursery()  # in this thread: the children's threads ask for it in theirs
    monkeypatch.setattr(process, "subprocess", _Subprocess())


@pytest.fixture
def started(adopted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As programs of their own after all, for a test that looks at that."""
    monkeypatch.setattr(process, "subprocess", subprocess)
