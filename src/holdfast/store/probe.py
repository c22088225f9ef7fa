"""The statement of a probe of the connection."""

from datetime import datetime
from typing import Any

from .statement import Statement, named


def _only(rows: Any) -> Any:
    return rows[0][0]


def backend_pid() -> Statement[int]:
    return named("backend_pid", (), _only)


def leave_mark(mark: str) -> Statement[str]:
    return named("leave_mark", (mark,), _only)


def read_mark() -> Statement[str | None]:
    return named("read_mark", (), _only)


def server_time() -> Statement[datetime]:
    return named("server_time", (), _only)
