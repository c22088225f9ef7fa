"""Found by itself. It imports models, which Django allows only once it is set up."""

import os

from asgiref.sync import sync_to_async
from django.db import connection, connections

from holdfast import Backoff, Registry, Transaction
from holdfast.contrib.django import app

from .models import Part

AT_ONCE = Backoff(first=0.01, jitter=False)
app.queue("stock")
parts = Registry("parts")


def write(name: str) -> int:
    """Returns the server's process behind the connection of this thread."""
    part = Part.objects.create(name=name, backend=_backend())
    return int(part.backend or 0)


def _backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@app.task(retry=AT_ONCE, max_attempts=3)
def receive(name: str) -> int:
    return write(name)


@app.task(retry=AT_ONCE, max_attempts=3)
async def areceive(name: str) -> int:
    return await sync_to_async(write)(name)


@app.task(retry=AT_ONCE, max_attempts=3, process=True)
def receive_apart(name: str) -> list[int]:
    return [os.getpid(), write(name)]


@app.task(retry=AT_ONCE, max_attempts=3)
def move(tx: Transaction, name: str, fail: bool = False) -> int:
    """What the ORM writes, what is enqueued and the completion are one transaction."""
    backend = write(name)
    tx.execute("INSERT INTO stock_part (name) VALUES (%s)", [f"{name} by tx"])
    receive.using(conn=connection).enqueue(name=f"after {name}")
    if fail:
        raise ValueError("fell off")
    return backend


@app.task
def hang_up() -> None:
    """Persistent connections end with their thread; here before that."""
    connections.close_all()


@app.task
async def ahang_up() -> None:
    await sync_to_async(connections.close_all)()


@parts.task
def count() -> int:
    return Part.objects.count()
