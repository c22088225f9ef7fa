"""Run by Django's own test runner, on a database that it makes and drops."""

import asyncio

from django.test import TestCase

from holdfast.contrib.django import app

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
