"""The processor time of the server's processes, where it runs on this machine."""

import contextlib
import os
from pathlib import Path
from typing import Any

import psycopg

_TICK = os.sysconf("SC_CLK_TCK")


def server_cpu(conn: psycopg.Connection[Any]) -> float | None:
    """Seconds so far of all its processes, also of those that have ended; None: it is elsewhere."""
    own = _stat(conn.info.backend_pid)
    if own is None or "postgres" not in own[0]:
        return None
    postmaster = int(own[1][1])
    head = _stat(postmaster)
    if head is None:
        return None
    total = sum(int(head[1][n]) for n in (11, 12, 13, 14))  # its own, and of its children that have ended
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (found := _stat(int(folder.name))) and int(found[1][1]) == postmaster:
            total += int(found[1][11]) + int(found[1][12])
    return total / _TICK


def _stat(pid: int) -> tuple[str, list[str]] | None:
    """The name of a process, and the fields behind it from its state on."""
    with contextlib.suppress(OSError):
        name, _, rest = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        )
        return name, rest.split()
    return None
