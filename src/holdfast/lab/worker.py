"""A worker process of the lab: an ordinary worker that notes every statement that it runs."""

import importlib
import logging

from holdfast import failpoints, telemetry
from holdfast.app import Holdfast
from holdfast.cli.logs import LogFormat, LogLevel, configure
from holdfast.cli.serving import Work, serve
from holdfast.db.executors import listen_in
from holdfast.lab import outside
from holdfast.store.statement import Row, Statement

QUIET = frozenset({"describe_server", "schema_version", "queue_names", "queue_rules"})
STEPS = frozenset({"claim", "settle_done"})  # that change a job, each a transaction of its own
COMMITTED = "settle.committed"  # where the others are done
_TOLD = ("job.", "worker.", "ring.", "events.", "projection.", "workflow.", "suspects.")


def _hear(statement: Statement[object], rows: list[Row], seconds: float) -> None:
    pen = outside.pen()
    if (
        pen is None or statement.name in QUIET or not (rows or statement.name == "guard")
    ):  # no row: an idle look
        return
    pen.ran(statement, rows, seconds)
    if statement.name in STEPS:
        outside.step()


def _told(event: telemetry.Event) -> None:
    pen = outside.pen()
    if pen is not None and event.level >= logging.INFO and event.name.startswith(_TOLD):
        fields = {name: str(value) for name, value in event.fields.items() if name != "trace"}
        pen.write("said", event.name, **fields)


def main(scene: str) -> None:
    configure(LogFormat.json, LogLevel.info)
    module = importlib.import_module(f"holdfast.lab.scenes.{scene}")
    app: Holdfast = module.app
    if module.SCENE.notes:
        listen_in(_hear)
        failpoints.arm(COMMITTED, outside.step)
    telemetry.subscribe(_told)
    serve(app, Work(), LogFormat.json)
