"""What every part of a worker is made with."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ..db.database import Database
from ..db.session import Session
from ..settings import Settings
from .endings import Endings
from .handler import Handlers
from .inflight import InFlight
from .options import WorkerOptions
from .side_tasks import SideTasks
from .sleep import DROWSY, Pause


@dataclass(slots=True, frozen=True)
class WorkerContext:
    database: Database
    handlers: Handlers
    options: WorkerOptions
    me: Callable[[], str]  # the identity: it changes when a fenced worker starts over
    session: Session  # for short statements
    inflight: InFlight = field(default_factory=InFlight)
    endings: Endings = field(default_factory=Endings)
    pause: Pause = field(default_factory=Pause)  # of the claim loop
    side: SideTasks = field(default_factory=SideTasks)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)  # no more claims
    hurry: asyncio.Event = field(default_factory=asyncio.Event)  # nor waiting for handlers

    @property
    def settings(self) -> Settings:
        return self.database.settings

    @property
    def listens(self) -> bool:
        """Whether notifications are of use."""
        return self.settings.notify and self.settings.poll > DROWSY and not self.options.until_idle

    def stop(self) -> None:
        """Stop claiming and drain; called again, drain at once."""
        if self.stopping.is_set():
            self.hurry.set()
        self.stopping.set()
        self.pause.end()
