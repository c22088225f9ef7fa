"""Statements of the store with no Python per job: one example, its arrays made as long as a batch as one text each."""

from collections.abc import Sequence
from typing import Any

import psycopg

from ..db.connect import CONFIGURE, configuration
from ..db.executors import OurCursor
from ..model.clock import Clock
from ..store.arrays import text_array
from ..store.statement import Statement


class Engine:
    """A connection that is set as the engine's own are."""

    def __init__(self, url: str) -> None:
        self.conn = psycopg.connect(url, autocommit=True)
        self.conn.prepare_threshold = 1
        self.cursor = OurCursor(self.conn)
        self.cursor.execute(
            CONFIGURE.encode(), configuration(self.conn, Clock(), 60.0, engine=True, keep_plans=True)
        )

    def run(
        self, text: str | bytes, parameters: Sequence[Any], *, binary: bool = False
    ) -> "psycopg.RawCursor[Any]":
        self.cursor.execute(text if isinstance(text, bytes) else text.encode(), parameters, binary=binary)
        return self.cursor

    def ask(self, what: Statement[Any]) -> "psycopg.RawCursor[Any]":
        """As a worker asks it; the answer is not decoded."""
        return self.run(what.text, what.params, binary=what.binary)


def repeated(parameter: Any, times: int) -> Any:
    """An array repeated that many times, in the server's own notation; anything else as it is."""
    if isinstance(parameter, list):
        parameter = text_array([None if value is None else str(value) for value in parameter])
    if not (isinstance(parameter, str) and parameter.startswith("{") and parameter.endswith("}")):
        return parameter
    return "{" + ",".join([parameter[1:-1]] * times) + "}"
