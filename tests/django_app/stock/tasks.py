"""Found by itself. It imports models, which Django allows only once it is set up."""

import asyncio
import contextlib
import os
import sys
import threading
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist
from django.db import connection, connections, transaction

from holdfast import Backoff, DeadLetter, Registry, Transaction
from holdfast.contrib.django import app
from holdfast.contrib.django.flavour import values

from .models import Part

task: Any = values.task  # django.tasks.task, or that of the backport
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


@app.task(max_attempts=1)
def swallow(tx: Transaction, name: str) -> None:
    """Django rolls a transaction back in which save() raised, whoever caught that."""
    write(name)
    with contextlib.suppress(ValueError):
        Part(id="no number", name=name).save()


meeting = threading.Barrier(2)


@app.task(max_attempts=1)
async def meet(seconds: float) -> int:
    """Two of these go on when both are there, each in its thread."""
    await sync_to_async(meeting.wait)(seconds)
    first = await sync_to_async(_backend)()
    assert await sync_to_async(_backend)() == first
    return first


@app.task(max_attempts=1)
def promise(tx: Transaction, name: str) -> None:
    """The first call after the commit raises."""
    transaction.on_commit(lambda: int(name))
    transaction.on_commit(lambda: Part.objects.create(name=f"after {name}") and None)
    write(name)


@app.task
def hang_up() -> None:
    """Persistent connections end with their thread; here before that."""
    connections.close_all()


@app.task
async def ahang_up() -> None:
    await sync_to_async(connections.close_all)()


@app.task(max_attempts=1, masked=["diagnosis"])
def admit(diagnosis: str) -> None:
    raise ValueError(f"cannot admit: diagnosis={diagnosis!r}, password='hunter2'")


@parts.task
def count() -> int:
    return Part.objects.count()


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
async def aadd(a: int, b: int = 0) -> int:
    return a + b


@task
def order(name: str) -> None:
    Part.objects.create(name=name)


@task
def tip_over(text: str) -> None:
    raise ValueError(text)


@task
def leave(text: str) -> None:
    sys.exit(text)


@task
def lose(text: str) -> None:
    raise ObjectDoesNotExist(text)


lingering = threading.Event()


@task
async def linger() -> None:
    lingering.set()
    await asyncio.sleep(3600)


@task
def give_up(text: str) -> None:
    raise DeadLetter(text)


@task
def no_json() -> object:
    return object()


@task(takes_context=True)
def tell(context: Any, word: str) -> list[object]:
    return [context.attempt, context.task_result.id, word]


@task(backend="stubborn", takes_context=True)
def third_time(context: Any) -> int:
    if context.attempt < 3:
        raise RuntimeError("not yet")
    return int(context.attempt)
