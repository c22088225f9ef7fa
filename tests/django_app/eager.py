"""The backend with a worker behind every enqueue: so tests of a backend that runs its tasks at once can be run on ours."""

import asyncio
import threading
from typing import Any

from holdfast.contrib.django import app
from holdfast.contrib.django.backend import HoldfastBackend


class EagerBackend(HoldfastBackend):
    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        worker = threading.Thread(target=lambda: asyncio.run(app.run_worker(until_idle=True)))
        worker.start()
        worker.join()
        result.refresh()
        return result
