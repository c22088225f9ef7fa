"""The app of the crash tests of ordered queues: each attempt writes into `steps` when it starts and when it ends."""

import os
import threading
import time
from typing import Any

import psycopg

from holdfast import Backoff, Holdfast, Job

app = Holdfast()
app.queue("ordered", ordering="key")


_threads = threading.local()


def connection() -> psycopg.Connection[Any]:
    """One for each thread."""
    if not hasattr(_threads, "conn"):
        _threads.conn = psycopg.connect(os.environ["HOLDFAST_DATABASE_URL"], autocommit=True)
    conn: psycopg.Connection[Any] = _threads.conn
    return conn


@app.task(queue="ordered", retry=Backoff(first=0.01, cap=0.05, jitter=False), max_attempts=100)
def step(job: Job, key: str, n: int, seconds: float = 0.0) -> None:
    """Sync, with a connection of its own: nobody can stop it, and nothing but its own writes tells what it did."""
    conn = connection()
    where = [key, n, job.generation, os.getpid()]
    conn.execute(
        "INSERT INTO steps (key, n, generation, pid, started) VALUES (%s, %s, %s, %s, clock_timestamp())",
        where,
    )
    time.sleep(seconds)
    if n % 5 == 0 and job.attempt == 1:
        raise ValueError("the first time")
    conn.execute(
        "UPDATE steps SET finished = clock_timestamp() WHERE (key, n, generation, pid) = (%s, %s, %s, %s)",
        where,
    )
