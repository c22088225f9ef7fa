"""Sessions for tests of the log."""

from tests.sql.conftest import conn, connect

__all__ = ["conn", "connect"]
