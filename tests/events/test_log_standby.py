"""A standby reads the pages that came to it, and turns none: there, open transactions look committed."""

import os
import shutil
from pathlib import Path

import psycopg
import pytest
from tests.conftest import wait_until
from tests.events.log_support import check_log, labels, publish, session, turn
from tests.pg_versions import server_folder
from tests.sql.support import one

from holdfast.db import migrate
from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer
from holdfast.db.embedded.manage import stop
from holdfast.db.embedded.place import locate

BINARIES = Path(os.environ["HOLDFAST_TEST_PG_BIN"]) if os.environ.get("HOLDFAST_TEST_PG_BIN") else None


@pytest.mark.versions
@pytest.mark.slow
def test_a_standby_reads_pages_and_turns_none() -> None:
    home = server_folder("hf-by-")
    home.chmod(0o755)  # the server of a root process runs as somebody else
    options = EmbeddedOptions(durable=False, binaries=BINARIES, settings={"wal_level": "replica"})
    try:
        with EmbeddedServer.acquire(home / "pg", options) as server:
            server.ensure_database()
            migrate.up(server.dsn())
            with session(server.dsn()) as conn:
                publish(conn, 1)
                assert turn(conn) == 1
                publish(conn, "not numbered")
        stop(home / "pg", force=True)
        place = locate(home / "pg")
        assert place is not None
        (place.data / "standby.signal").touch()
        with EmbeddedServer.acquire(home / "pg", options) as server, session(server.dsn()) as conn:
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as raised:
                conn.execute("SELECT holdfast.turn_page()")
            said = "events are numbered on the primary, and this server is a standby"
            assert raised.value.diag.message_primary == said
            assert labels(conn) == [1]
            conn.execute("SELECT pg_promote()")
            wait_until(lambda: not one(conn, "SELECT pg_is_in_recovery()"), "it is promoted")
            assert turn(conn) == 2, "no rebase is needed"
            publish(conn, 3)
            assert turn(conn) == 3
            assert labels(conn) == [1, "not numbered", 3]
            assert one(conn, "SELECT era FROM holdfast.event_log") == 1
            check_log(conn)
    finally:
        shutil.rmtree(home, ignore_errors=True)
