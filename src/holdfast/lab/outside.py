"""What handlers of scenes do: effects outside of their job, notes for the tape, and stops at which somebody may look.

It runs in worker processes, and in the lab's own process, where it notes nothing.
"""

import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Holdfast, Job
from holdfast.lab.notes import FOLDER, UNSAFE, Pen

STEPPING = "stepping"  # the file that says that workers stop after each step


def did(what: str, job: Job | None = None, **fields: Any) -> None:
    """For the tape."""
    if (writes := pen()) is not None:
        if job is not None:
            fields |= {"job": str(job.id), "generation": job.generation}
        writes.write("did", what, **fields)


@functools.cache
def pen() -> Pen | None:
    """Writes the notes of this worker; None in the lab's own process."""
    return Pen(Path(os.environ[FOLDER])) if FOLDER in os.environ else None


def is_unsafe() -> bool:
    """Whether the scene's unsafe switch is on."""
    return os.environ.get(UNSAFE) == "1"


def step() -> None:
    """Stop here, where the lab goes step by step: the whole process, until the lab wakes it."""
    if FOLDER in os.environ and (Path(os.environ[FOLDER]) / STEPPING).exists():
        os.kill(os.getpid(), signal.SIGSTOP)


def apart(app: Holdfast) -> psycopg.Connection[Any]:
    """A connection of the handler's own, outside of its job: its writes stay, whichever worker owns the job."""
    return psycopg.connect(app.database.dsn, autocommit=True)


def mail(app: Holdfast, job: Job, order_id: int) -> None:
    """The mails that the mail server got. Nobody can take a mail back."""
    with apart(app) as conn:
        conn.execute(
            "INSERT INTO mails (order_id, job, fence, pid) VALUES (%s, %s, %s, %s)",
            [order_id, job.id, job.generation, os.getpid()],
        )
    did("mail", job, order=order_id)


def rest(place: str, job: Job | None = None) -> None:
    """Wait here for as long as the lab holds this place."""
    if FOLDER not in os.environ:
        return
    held = Path(os.environ[FOLDER]) / f"hold-{place}"
    if held.exists():
        did(f"waits {place}", job, tone="held", at=place)
    while held.exists():
        time.sleep(0.02)
