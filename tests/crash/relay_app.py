"""The app of the crash tests of relays: a destination that is a file, and knows which process wrote what; or the broker of
RELAY_URL. With RELAY_STOPS_AT the process stops itself before it asks for the lease for the so many-th time."""

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Iterable, Sequence

from tests.crash.crash_app import write_line

from holdfast import Holdfast, failpoints, telemetry
from holdfast.transport import Capabilities, Confirmed, Health, Outcome, OutMessage

WINDOW = int(os.environ.get("RELAY_WINDOW", "8"))

app = Holdfast()  # database and timings come from HOLDFAST_ variables


class FileTransport:
    capabilities = Capabilities(order="key", max_bytes=10_000)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
        for message in batch:
            n = json.loads(message.body)["data"]["n"]
            write_line("sent", json.dumps({"pid": os.getpid(), "id": message.id, "key": message.key, "n": n}))
        await asyncio.sleep(0.001)
        return [Confirmed() for _ in batch]

    async def check(self, destinations: Iterable[str]) -> Health:
        return Health(True)


app.relay(
    "out",
    os.environ.get("RELAY_URL") or FileTransport(),
    on=["*"],
    route="file",
    window=WINDOW,
    start="start",
)


def _stop_at(wanted: int) -> None:
    asked = itertools.count(1)

    def stop() -> None:
        if next(asked) == wanted:
            os.kill(os.getpid(), signal.SIGSTOP)

    failpoints.arm("relay.write", stop)


if "RELAY_STOPS_AT" in os.environ:
    _stop_at(int(os.environ["RELAY_STOPS_AT"]))


def _write_event(event: telemetry.Event) -> None:
    fields = {key: str(value) for key, value in event.fields.items()}
    write_line(f"events-{os.getpid()}", json.dumps({"name": event.name, "level": event.level, **fields}))


if "CRASH_FOLDER" in os.environ:
    telemetry.subscribe(_write_event)
