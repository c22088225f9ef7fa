"""Servers and databases as tests handle them."""

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from tests.conftest import within

Connection = psycopg.Connection[tuple[Any, ...]]
_numbers = itertools.count(1)


@dataclass
class Server:
    major: int
    bin: Path
    address: str

    def dsn(self, database: str, **parts: str) -> str:
        return make_conninfo(self.address, dbname=database, **parts)

    def connect(self, database: str = "postgres", **parts: str) -> Connection:
        return psycopg.connect(self.dsn(database, **parts), autocommit=True)


@dataclass
class Database:
    server: Server
    name: str

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def connect(self, **parts: str) -> Connection:
        return self.server.connect(self.name, **parts)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as conn:
            return conn.execute(query.encode()).fetchall()

    def run(self, statements: str) -> None:
        with self.connect() as conn:
            conn.execute(statements.encode())


def unique(prefix: str) -> str:
    return f"mig_{prefix}_{os.getpid()}_{next(_numbers)}"


def eventually(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait for a condition, and fail when it does not come."""
    deadline = time.monotonic() + within(seconds)
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
