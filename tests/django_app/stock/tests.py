"""Run by Django's own test runner, on a database that it makes and drops."""

import asyncio

from django.db import connection
from django.test import TestCase, TransactionTestCase

from holdfast.contrib.django import app
from holdfast.contrib.django.models import Job

from .models import Part
from .tasks import areceive, receive


class Enqueued(TestCase):
    def test_on_connections_of_our_own(self) -> None:
        Part.objects.create(name="bolt")
        handle = receive.enqueue(name="nut")
        asyncio.run(_aenqueue())
        job = app.job(handle.id)
        assert job is not None
        assert job.state == "pending"


async def _aenqueue() -> None:
    await areceive.aenqueue(name="nut")


class RolledBack(TestCase):
    """As docs/django.md has it: what is enqueued in the transaction of the test ends with it."""

    def test_one(self) -> None:
        waiting = Job.objects.filter(task="receive", status="pending").count()
        receive.using(conn=connection).enqueue(name="nut")
        assert Job.objects.filter(task="receive", status="pending").count() == waiting + 1

    test_two = test_one


class Committed(TransactionTestCase):
    def setUp(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE holdfast.work, holdfast.archive, holdfast.dead_letters")

    def test_one(self) -> None:
        receive.enqueue(name="nut")
        asyncio.run(app.run_worker(until_idle=True))
        assert Job.objects.get(task="receive").status == "completed"
        assert Part.objects.get().name == "nut"

    test_two = test_one
