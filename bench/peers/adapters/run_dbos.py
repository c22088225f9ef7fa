"""DBOS: each job is a workflow without steps, started from a queue."""

from common import Drain, Latency, analyze, call
from dbos import DBOS, DBOSConfig

LEFT = "SELECT EXISTS (SELECT FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING'))"
drain, latency = Drain(LEFT), Latency()
settings = call.settings


def ran_one(n: int) -> None:
    if call.drains:
        drain.ran_one()
    else:
        latency.ran_one(n)


@DBOS.workflow()
def nothing(n: int) -> None:
    ran_one(n)


@DBOS.workflow()
async def nothing_async(n: int) -> None:
    ran_one(n)


def main() -> None:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": call.url.replace("postgresql:", "postgresql+psycopg:", 1),
        "sys_db_pool_size": settings["pool"],
        "max_executor_threads": settings["threads"],
        "log_level": "ERROR",
        "enable_otlp": False,
    }
    DBOS(config=config)
    DBOS.launch()
    options = {"worker_concurrency": settings["worker_concurrency"]}
    workflow = nothing_async if settings.get("async") else nothing

    def enqueue(n: int) -> None:
        DBOS.enqueue_workflow("jobs", workflow, n)

    def listen() -> None:
        DBOS.register_queue("jobs", polling_interval_sec=settings["polling_interval_sec"], **options)

    if call.drains:
        # Nothing runs before the queue is known: enqueued first, then registered.
        for n in range(call.jobs):
            enqueue(n)
        analyze()
        listen()
        drain.finish()
    else:
        listen()
        latency.finish(enqueue)
    DBOS.destroy()


main()
