"""Ranges of the log that are delivered again: any worker takes the next piece of one, at its pace."""

import logging

from ... import telemetry
from ...db.database import Database
from ...runtime.service import Service
from . import store_acts
from .spec import Spec

PIECE = 500  # deliveries of one transaction
IDLE = 2.0  # seconds between two searches when there is no range


class Ranges(Service):
    name = "webhook ranges"

    def __init__(self, database: Database, spec: Spec) -> None:
        super().__init__()
        self._database = database
        self._attempts = (spec.attempts, len(spec.ordered_schedule) + 1)

    async def tick(self) -> float:
        wait = await self._database.arun(store_acts.next_range)
        if wait is None or wait > 0:
            return IDLE if wait is None else min(wait, IDLE)
        stepped = await self._database.arun(lambda: store_acts.step_range(*self._attempts, PIECE))
        if stepped is None:  # another worker has it
            return 0.1
        if stepped.gone:
            telemetry.emit(
                "webhook.range_gone",
                level=logging.WARNING,
                endpoint=str(stepped.endpoint),
                events=stepped.gone,
            )
        if stepped.ended:
            telemetry.emit("webhook.range_ended", endpoint=str(stepped.endpoint), range=str(stepped.range))
        return 0.0
