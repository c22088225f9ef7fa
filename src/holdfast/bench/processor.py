"""The processor time that processes of this machine have used: where others are busy too, it says what a clock cannot."""

import contextlib
from pathlib import Path
from typing import Any

import psycopg


def used_by(*pids: int) -> float:
    """Seconds so far of all threads of these processes. What has ended counts nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    total += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
    return total / 1e9


def children_of(pid: int) -> list[int]:
    """The processes that it started and that are there now."""
    return [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and _parent(folder)[1] == pid
    ]


def postmaster_of(conn: psycopg.Connection[Any]) -> int | None:
    """The process that all others of this server are children of; None: it is elsewhere."""
    name, parent = _parent(Path(f"/proc/{conn.info.backend_pid}"))
    return parent if "postgres" in name else None


def _parent(folder: Path) -> tuple[str, int | None]:
    """The name of a process, and the process that started it."""
    with contextlib.suppress(OSError):
        name, _, rest = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        return name, int(rest.split()[1])
    return "", None
