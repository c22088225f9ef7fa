"""`holdfast dev`, started again whenever a Python file of the folder changes."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import typer

_LOOK = 0.5  # seconds between two looks at the files
_PATIENCE = 5.0  # seconds that handlers have to finish before they are handed back
_LEFT_OUT = {"node_modules", "site-packages", "__pycache__"}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: its terminal is gone

Files = dict[str, int]  # path -> when it was changed


def python_files(folder: Path) -> Files:
    """Every Python file below, but those of hidden folders and of installed packages."""
    found: Files = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith(".")]
        for name in names:
            if name.endswith(".py"):
                with contextlib.suppress(OSError):  # removed meanwhile
                    path = os.path.join(place, name)
                    found[path] = os.stat(path).st_mtime_ns
    return found


def changed(before: Files, after: Files) -> str | None:
    """A file that is new, gone or other than before."""
    return next((path for path in sorted({*before, *after}) if before.get(path) != after.get(path)), None)


def run_reloading(words: Sequence[str], folder: Path) -> int:
    """Run `holdfast WORDS` as a child, and start it again with every change; returns its exit code after a signal to stop,
    or when the first one fails. A later one that fails, as code does while it is being written, waits for a change."""
    seen = python_files(folder)
    with _Stop() as stop:
        for patient in itertools.chain([False], itertools.repeat(True)):
            child = stop.start(words)
            file = _watch(child, seen, folder, stop, patient)
            if file is None:
                return child.wait()
            typer.echo(f"{Path(file).relative_to(folder)} changed: starting again", err=True)
            _end(child)
            seen = python_files(folder)
            if stop.asked:  # while it drained, or while the files were read
                return child.wait()
    raise AssertionError


def _watch(
    child: subprocess.Popen[bytes], seen: Files, folder: Path, stop: "_Stop", patient: bool
) -> str | None:
    """The file that changed; None: the child ended, and is not to be started again."""
    told = False
    while True:
        code = child.poll()
        if code == 0 or (code is not None and (stop.asked or not patient)):
            return None
        if code is not None and not told:
            told = True
            typer.echo("waiting for a change of a Python file", err=True)
        if file := changed(seen, python_files(folder)):
            return file
        time.sleep(_LOOK)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let it drain, for a while."""
    for patience in (_PATIENCE, _PATIENCE):
        if child.poll() is None:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(patience)
    if child.poll() is None:
        child.kill()
        child.wait()


class _Stop:
    """Passes signals on to the child, which is in a session of its own: each counts once."""

    def __init__(self) -> None:
        self.asked = False
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "_Stop":
        self._handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "holdfast", *words]
        self._child = subprocess.Popen(command, start_new_session=True)
        return self._child

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.asked = True
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
