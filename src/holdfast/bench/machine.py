"""What stands beside every figure: versions, settings and the machine."""

import os
import platform
import sysconfig
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psycopg

from ..distribution import VERSION
from .loops import loop_name

SHOWN = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "autovacuum",
    "autovacuum_naptime",
    "max_connections",
    "shared_preload_libraries",
)


def describe(url: str, own: bool) -> dict[str, Any]:
    with psycopg.connect(url, autocommit=True) as conn:
        number = conn.info.server_version
        rows = conn.execute(
            "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s)", [list(SHOWN)]
        )
        settings: dict[str, str] = dict(rows.fetchall())
    return {
        "holdfast": VERSION,
        "python": platform.python_version(),
        "build": build(str(sysconfig.get_config_var("CONFIG_ARGS") or "")),
        "loop": loop_name(),
        "psycopg": f"{_release('psycopg')} ({psycopg.pq.__impl__})",
        "postgresql": f"{number // 10000}.{number % 10000}",
        "server": "its own, over a unix socket" if own else "the one of --url",
        "settings": {name: settings[name] for name in SHOWN if name in settings},
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
        "load_at_start": round(os.getloadavg()[0], 2),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def build(arguments: str) -> str:
    """How this interpreter was built, as far as it says: one without --enable-optimizations is slower."""
    said = "optimised" if "--enable-optimizations" in arguments else "does not say that it is optimised"
    threads = ", without a global interpreter lock" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"{platform.python_implementation()}, {said}{threads}"


def _release(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def lines(meta: dict[str, Any]) -> list[str]:
    """For the head of a table."""
    machine, settings = meta["machine"], meta["settings"]
    python = f"Python {meta['python']} ({meta['build']}; {meta['loop']})"
    return [
        f"holdfast {meta['holdfast']}, {python}, psycopg {meta['psycopg']}",
        f"PostgreSQL {meta['postgresql']}, {meta['server']}: "
        + ", ".join(f"{name} {value}" for name, value in settings.items()),
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}",
        f"load {meta['load_at_start']} at the start, {meta['date']}",
    ]
