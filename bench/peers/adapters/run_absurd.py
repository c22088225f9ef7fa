"""Absurd, with its SDK for Python. Its schema comes with absurdctl, which would pipe the same text to psql."""

import threading

import psycopg
from absurd_sdk import Absurd, TaskContext
from absurdctl import BUNDLED_SCHEMA_SQL
from common import Drain, Latency, analyze, call

LEFT = "SELECT EXISTS (SELECT FROM absurd.t_default WHERE state IN ('pending', 'running', 'sleeping'))"


def main() -> None:
    with psycopg.connect(call.url, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL.encode())
    producer = Absurd(call.url)
    producer.create_queue("default")
    drain, latency = Drain(LEFT), Latency()
    workers = [Absurd(call.url) for _ in range(call.settings["workers"])]
    for worker in workers:

        @worker.register_task(name="nothing")
        def nothing(params: dict[str, int], ctx: TaskContext) -> None:
            if call.drains:
                drain.ran_one()
            else:
                latency.ran_one(params["n"])

    if call.drains:
        for n in range(call.jobs):
            producer.spawn("nothing", {"n": n}, queue="default")
        analyze()
    options = {name: call.settings[name] for name in ("concurrency", "batch_size", "poll_interval")}
    for worker in workers:
        threading.Thread(target=worker.start_worker, kwargs=options, daemon=True).start()
    if call.drains:
        drain.finish()
    else:
        latency.finish(lambda n: producer.spawn("nothing", {"n": n}, queue="default"))
    for worker in workers:
        worker.stop_worker()


main()
