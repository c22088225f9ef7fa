"""What a worker checks before it begins: its environment, and its server."""

import functools
import logging
from collections.abc import Mapping, Sequence

from .. import telemetry
from ..db import migrate
from ..db.database import Database
from ..errors import SchemaMissing
from ..model.queue import QueueRules
from ..settings import misspelled_variables
from ..store import jobs
from ..store.queues import create_queue, queue_rules
from .writer import check_rules, unknown_queue


async def check_server(
    database: Database, wanted: Sequence[str], declared: Mapping[str, QueueRules]
) -> dict[str, QueueRules]:
    """The server is reliable, and has the wanted queues; returns the rules of each."""
    for variable, meant in misspelled_variables():
        telemetry.emit(
            "setting.unknown", level=logging.WARNING, variable=variable, advice=f"did you mean {meant}?"
        )
    server = await database.arun(jobs.describe_server)
    if not server.has_schema:
        raise SchemaMissing
    version = await database.arun(jobs.schema_version)
    migrate.verify(version.number, needs_code=version.needs_code)
    safe = server.fsync != "off" and server.synchronous_commit != "off"
    telemetry.emit("durability", level=logging.INFO if safe else logging.WARNING, promise=server.durability)
    existing = await database.arun(jobs.queue_names)
    for queue in wanted:
        if queue in existing:
            continue
        if not (database.is_embedded and queue in declared):
            raise unknown_queue(queue, existing, declared.get(queue))
        await database.arun(functools.partial(create_queue, queue, rules=declared[queue]))
    found = await database.arun(lambda: queue_rules(wanted))
    for queue, rules in found.items():
        if differs := check_rules(queue, declared.get(queue), rules):
            telemetry.emit(
                "queue.differs",
                level=logging.WARNING,
                queue=queue,
                options=", ".join(differs),
                advice="the database's values apply; to change them to what the app declares: holdfast queue sync",
            )
    return found
