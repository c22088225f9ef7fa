"""In a worker's process: each statement is a failpoint, `statement.NAME`, right after the server has run it.

A file `server` in the folder of the test, with the name of a statement and the path of a server's postmaster.pid, lets the
first worker that has run such a statement kill that server with -9.
"""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from holdfast import failpoints
from holdfast.db import database, executors


def mark() -> None:
    folder = Path(os.environ["CRASH_FOLDER"])
    run, arun = executors.run, executors.arun

    def passed(name: str) -> None:
        with (folder / "statements").open("a", encoding="utf-8") as file:
            file.write(name + "\n")
        failpoints.point(f"statement.{name}")
        with contextlib.suppress(FileNotFoundError):
            wanted, file_of_pid = (folder / "server").read_text(encoding="utf-8").split()
            if wanted == name:
                (folder / "server").unlink()
                os.kill(int(Path(file_of_pid).read_text(encoding="utf-8").split()[0]), signal.SIGKILL)

    def marked(conn: Any, statement: Any) -> Any:
        found = run(conn, statement)
        passed(statement.name)
        return found

    async def amarked(conn: Any, statement: Any) -> Any:
        found = await arun(conn, statement)
        passed(statement.name)
        return found

    for module in (executors, database):  # which has them under names of its own
        module.run, module.arun = marked, amarked  # type: ignore[attr-defined]


def seen(folder: Path) -> set[str]:
    """The statements that workers of this test have run."""
    return set((folder / "statements").read_text(encoding="utf-8").split())
