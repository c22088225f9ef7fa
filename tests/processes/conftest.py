"""The app of the process tests on a fresh database, and what its processes noted down."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import QUICK, wait_until
from tests.processes.adopted import adopted as adopted
from tests.processes.adopted import started as started
from tests.processes.process_app import app

from holdfast.testing import Kit


class Scene:
    """One test: its database, its folder of notes and gates."""

    def __init__(self, make: Callable[..., Kit], folder: Path) -> None:
        self._make = make
        self.folder = folder
        self.kit: Kit = make(app, QUICK)

    def settings(self, **changes: Any) -> None:
        self.kit = self._make(app, replace(QUICK, **changes))

    def open(self, gate: str) -> None:
        (self.folder / gate).touch()

    def notes(self, kind: str) -> list[tuple[int, str]]:
        """(pid, text) of every note of that kind, in order."""
        file = self.folder / "notes"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        found = [line.split(" ", 2) for line in lines]
        return [(int(pid), text) for name, pid, text in found if name == kind]

    def until_noted(self, kind: str, count: int = 1) -> list[tuple[int, str]]:
        return wait_until(lambda: self._at_least(kind, count), f"{count} notes {kind!r}")

    def _at_least(self, kind: str, count: int) -> list[tuple[int, str]]:
        found = self.notes(kind)
        return found if len(found) >= count else []

    def trace(self, job_id: object) -> str:
        (row,) = self.kit.sql(
            "SELECT trace FROM holdfast.errors WHERE job_id = %s ORDER BY at DESC LIMIT 1", [job_id]
        )
        return str(row["trace"])

    def end(self, job_id: object) -> tuple[str, int, str | None]:
        row = self.kit.job(job_id)  # type: ignore[arg-type]
        return row["status"], row["attempts"], row["last_error"]


def is_gone(pid: int) -> bool:
    """No process of that number, or only what is left of it until its parent asks."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def _end_leftovers(scene: Scene) -> None:
    """After a test that failed."""
    for pid in [p for p, _ in scene.notes("start")] + [int(text) for _, text in scene.notes("program")]:
        with contextlib.suppress(OSError):
            if b"holdfast.child" in (line := Path(f"/proc/{pid}/cmdline").read_bytes()) or b"sleep(" in line:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def scene(
    holdfast_kit: Callable[..., Kit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    monkeypatch.setenv("PROCESS_FOLDER", str(tmp_path))
    scene = Scene(holdfast_kit, tmp_path)
    yield scene
    _end_leftovers(scene)
