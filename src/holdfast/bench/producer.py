"""A producer process at a fixed rate: `python -m holdfast.bench.producer`.

Every job is due at its own moment whatever happened to those before it, so a slow one does not hide the wait of the next.
Its payload is the time just before its enqueue was called.
"""

import argparse
import asyncio
import json
import time

from .loops import loop_factory
from .worker_app import app, timed


async def produce(rate: float, seconds: float) -> None:
    async with app:
        await asyncio.gather(
            *(timed.aenqueue(0.0) for _ in range(10))
        )  # the connections are open from here on
        began, sending, room = time.perf_counter(), [], asyncio.Semaphore(app.settings.pool_size)

        async def send(sent: float) -> None:
            async with room:  # one that waits for a connection has begun anyway
                await timed.aenqueue(sent)

        count = max(1, round(rate * seconds))
        for n in range(count):
            if (wait := began + n / rate - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            sending.append(asyncio.create_task(send(time.time())))
        await asyncio.gather(*sending)
        took = time.perf_counter() - began
    print(json.dumps({"sent": count, "seconds": took, "cpu": time.process_time()}))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", type=float, required=True)
    options.add_argument("--seconds", type=float, required=True)
    given = options.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(produce(given.rate, given.seconds))


if __name__ == "__main__":
    main()
