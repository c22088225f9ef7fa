"""Temporary files in memory: a database per test is a thousand small files, for which a disk takes a second."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

MEMORY = Path("/dev/shm")
ENOUGH = 6 * 2**30  # bytes that the servers of a whole run may take there, and that are left then


@contextlib.contextmanager
def quick_folder() -> Iterator[None]:
    """Temporary files go to memory, unless TMPDIR says otherwise or there is too little of it."""
    if "TMPDIR" in os.environ or not has_room(MEMORY):
        yield
        return
    for left in MEMORY.glob("holdfast-tests-*"):  # of a run that was killed
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = MEMORY / f"holdfast-tests-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)  # root's servers run as another user
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def has_room(folder: Path) -> bool:
    try:
        available = next(
            int(line.split()[1]) * 1024
            for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
            if line.startswith("MemAvailable:")
        )
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".sh", delete=False) as script:
            script.write("#!/bin/sh\n")
        try:
            Path(script.name).chmod(0o755)
            subprocess.run([script.name], check=True)  # some machines run nothing from there
        finally:
            Path(script.name).unlink()
        return min(shutil.disk_usage(folder).free, available - ENOUGH) >= ENOUGH
    except (OSError, StopIteration, subprocess.CalledProcessError):
        return False
