"""Alive, ready, started: the probes' questions, decided from known facts. No probe waits or asks the database.

Alive is about the claim loop: it turns while there is nothing to do and while the database is unreachable, and stops when a
handler blocks the event loop. The heartbeat continues then, in its own thread, so it does not prove that a worker is alive.
"""

import json
import time
from dataclasses import dataclass
from http import HTTPStatus

from ..db import migrate
from ..errors import DatabaseError
from ..runtime.worker import Worker
from ..settings import Settings
from ..telemetry import Event
from .server import Reply
from .snapshot import Snapshots


@dataclass(frozen=True, slots=True)
class Verdict:
    reasons: list[str]  # why not; none: yes

    def reply(self) -> Reply:
        status = HTTPStatus.SERVICE_UNAVAILABLE if self.reasons else HTTPStatus.OK
        body = {"status": "fail" if self.reasons else "ok", "reasons": self.reasons}
        return Reply(status, json.dumps(body).encode() + b"\n", "application/json")


_PAUSE = 5.0  # the claim loop's longest, while the database is unreachable
_STATEMENTS = 4  # of a turn of the claim loop, per queue


def longest_turn(settings: Settings, queues: int) -> float:
    """Seconds that one turn of the claim loop may take when every statement replies just in time. A shorter limit
    would restart a whole fleet because its database is slow."""
    waiting = max(settings.poll, _PAUSE) + settings.connect_timeout
    return waiting + (1 + _STATEMENTS * queues) * settings.statement_timeout


class Health:
    def __init__(self, settings: Settings, snapshots: Snapshots) -> None:
        self._settings = settings
        self._snapshots = snapshots
        self.limit = settings.live_after
        self._registered: set[str] = set()  # identities, of every worker in this process
        self._started = False
        self._silent_since: float | None = None
        self.worker: Worker | None = None

    def attach(self, worker: Worker) -> None:
        queues = len(worker.queues)
        self.limit = max(self._settings.live_after, longest_turn(self._settings, queues))
        self.worker = worker

    def on_event(self, event: Event) -> None:
        """The heartbeat reports the state of the database, within seconds and without another query."""
        if event.name == "worker.started":
            self._registered.add(event.fields["worker"])
        elif event.fields.get("service") == "renew":
            if event.name == "service.failed" and self._silent_since is None:
                self._silent_since = time.monotonic()
            elif event.name == "service.recovered":
                self._silent_since = None

    @property
    def tick_age(self) -> float:
        """Seconds since the claim loop's last turn. A worker that starts or drains has no claim loop to judge."""
        worker = self.worker
        return 0.0 if worker is None or worker.draining else time.monotonic() - worker.ticked_at

    @property
    def draining(self) -> bool:
        return self.worker is not None and self.worker.draining

    def live(self) -> Verdict:
        age = self.tick_age
        if self.worker is None or age <= self.limit:
            return Verdict([])
        tasks = ", ".join(self.worker.running_tasks()) or "nothing"
        return Verdict(
            [f"the claim loop has not come round for {age:.0f} s (limit {self.limit:g} s); running: {tasks}"]
        )

    def started(self) -> Verdict:
        self._started = self._started or self._is_member()
        return Verdict([] if self._started else ["the worker is not registered yet"])

    def ready(self) -> Verdict:
        reasons = self.live().reasons + self._not_member() + self._no_database()
        return Verdict(reasons)

    def _is_member(self) -> bool:
        return self.worker is not None and self.worker.identity.id in self._registered

    def _not_member(self) -> list[str]:
        if not self._is_member():
            return ["the worker is not registered"]
        return ["the worker is draining"] if self.draining else []

    def _no_database(self) -> list[str]:
        """The text of the error goes to the log only: anybody may reach the port."""
        if self._silent_since is not None:
            silent = time.monotonic() - self._silent_since
            return [f"the heartbeat has not reached the database for {silent:.0f} s"]
        if self._snapshots.latest is None:
            return ["the database has not been looked at yet"]
        version = self._snapshots.latest.schema_version
        try:
            migrate.verify(version.number, needs_code=version.needs_code)
        except DatabaseError as error:
            return [str(error)]
        return []
