"""A worker with a health port, in a thread of its own, so that its event loop can be blocked while the test looks on."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import QUICK, wait_until

from holdfast import Settings, telemetry
from holdfast.runtime.worker import Worker
from holdfast.testing import Kit


@dataclass
class Port:
    """What can be seen of a worker from outside."""

    address: str
    started: list[Worker]

    @property
    def worker(self) -> Worker:
        return self.started[0]

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.address + path, headers=headers, timeout=50)

    def reasons(self, path: str) -> list[str]:
        answer = self.get(path)
        said: dict[str, Any] = answer.json()
        assert answer.headers["content-type"] == "application/json"
        assert (answer.status_code, said["status"]) in ((200, "ok"), (503, "fail"))
        assert (answer.status_code == 200) == (said["reasons"] == [])
        return list(said["reasons"])

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every sample of a scrape. No series may come twice: Prometheus would refuse the whole scrape."""
        found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(self.get("/metrics").text):
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in found, f"{key} comes twice"
                found[key] = sample.value
        return found

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples().get((f"holdfast_{name}", frozenset(labels.items())))


@contextlib.contextmanager
def serving(kit: Kit, **options: Any) -> Iterator[Port]:
    """Run the kit's worker in a thread until the block ends; the port as soon as it listens."""
    said: list[str] = []
    started: list[Worker] = []
    failed: list[BaseException] = []

    def listen(event: telemetry.Event) -> None:
        if event.name == "health.listening":
            said.append(event.fields["address"])

    async def main() -> None:
        try:
            await kit.app._serve(on_start=started.append, **options)
        except BaseException as error:
            failed.append(error)
        finally:
            await kit.database.aclose()

    unsubscribe = telemetry.subscribe(listen)
    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    try:
        wait_until(lambda: said or failed, "the port listens")
        if failed:
            raise failed[0]
        yield Port(said[0], started)
    finally:
        unsubscribe()
        if not failed:  # the port opens before there is a worker
            wait_until(lambda: started or failed, "there is a worker to stop")
        if started:
            with contextlib.suppress(RuntimeError):  # its loop is closed already
                started[0]._lifecycle._loop.call_soon_threadsafe(started[0].stop)
        thread.join(150)
        assert not thread.is_alive()


@contextlib.contextmanager
def ready(kit: Kit, **options: Any) -> Iterator[Port]:
    with serving(kit, **options) as port:
        wait_until(lambda: port.get("/readyz").status_code == 200, "the worker is ready")
        yield port


def with_port(**changes: Any) -> Settings:
    return replace(QUICK, health_port=0, **changes)
