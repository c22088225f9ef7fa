"""What a probe of the connection asks."""

from datetime import datetime
from typing import Any

from ..sql import query
from .statement import Statement


def _only(rows: Any) -> Any:
    return rows[0][0]


def backend_pid() -> Statement[int]:
    return Statement("backend_pid", query("backend_pid"), (), _only)


def leave_mark(mark: str) -> Statement[str]:
    return Statement("leave_mark", query("leave_mark"), (mark,), _only)


def read_mark() -> Statement[str | None]:
    return Statement("read_mark", query("read_mark"), (), _only)


def server_time() -> Statement[datetime]:
    return Statement("server_time", query("server_time"), (), _only)
