"""Dying: of users, of all users, of the server, half way through; and pid files that lie."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from holdfast.db.embedded import EmbeddedServer, postmaster, status
from holdfast.db.embedded.launch import host_identity
from holdfast.errors import EmbeddedError

from .conftest import FAST, USER, Start, eventually, is_stopped, kill


def works(server: EmbeddedServer) -> bool:
    with psycopg.connect(server.dsn("postgres")) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


def processes(program: str, home: Path) -> list[int]:
    """Who has both on its command line."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            line = Path(f"/proc/{entry}/cmdline").read_bytes()
            if os.fsencode(home) in line and program.encode() in line:
                found.append(int(entry))
    return found


def watchers(home: Path) -> list[int]:
    return processes("postmaster.py", home)


def test_a_killed_user_does_not_keep_the_server(ready: Path, user: Start) -> None:
    killed, stays = user(ready), user(ready)
    pid = killed.hear()["server"]
    assert stays.hear()["server"] == pid
    killed.kill()
    assert status(ready).pid == pid
    stays.leave()
    assert is_stopped(ready)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_stops_when_all_users_were_killed(ready: Path, user: Start, sign: signal.Signals) -> None:
    users = [user(ready) for _ in range(2)]
    pid = {each.hear()["server"] for each in users}.pop()
    eventually(lambda: watchers(ready))
    for each in users:
        each.process.send_signal(sign)
    eventually(lambda: is_stopped(ready) and postmaster.gone(pid))
    eventually(lambda: not watchers(ready))


def test_without_the_watcher_the_next_user_adopts_the_server_and_stops_it(ready: Path, user: Start) -> None:
    first = user(ready)
    pid = first.hear()["server"]
    eventually(lambda: watchers(ready))
    for watcher in watchers(ready):
        kill(watcher)
    eventually(lambda: not watchers(ready))
    first.kill()
    assert status(ready).pid == pid
    second = user(ready)
    assert second.hear()["server"] == pid
    second.leave()
    assert is_stopped(ready)


def test_a_killed_server_is_started_again_for_its_user(server: EmbeddedServer) -> None:
    before = server.pid
    kill(before)
    eventually(lambda: server.pid is None)
    server.ensure_running()
    assert works(server)
    assert server.pid not in (None, before)


def test_a_killed_server_is_started_again_by_the_next_user(server: EmbeddedServer, user: Start) -> None:
    kill(server.pid)
    heard = user(server.path).hear()
    assert heard["server"] == server.pid
    assert works(server)


def test_a_query_of_the_killed_server_that_still_runs_is_ended(server: EmbeddedServer) -> None:
    connection = psycopg.connect(server.dsn("postgres"))
    busy = connection.info.backend_pid
    query = "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b"

    def run() -> None:
        with suppress(psycopg.Error):
            connection.execute(query)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as other:
        active = "SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: other.execute(active, [busy]).fetchone() == (True,))
    kill(server.pid)
    assert not postmaster.gone(busy)
    server.ensure_running()
    assert works(server)
    assert postmaster.gone(busy)
    thread.join(timeout=50)
    connection.close()


def test_a_server_that_recovers_from_a_killed_connection_is_not_replaced(server: EmbeddedServer) -> None:
    before = server.pid
    connection = psycopg.connect(server.dsn("postgres"))
    kill(connection.info.backend_pid)
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()

    def recovered() -> bool:
        server.ensure_running()
        with suppress(
            psycopg.OperationalError
        ):  # it may not have noticed yet, and throw us out a moment later
            return works(server)
        return False

    eventually(recovered)
    assert server.pid == before


def test_without_a_proc_folder_ps_tells_the_same(server: EmbeddedServer) -> None:
    assert server.pid
    told = postmaster._look_with_ps(server.pid)
    assert told is not None
    assert (told.name, told.argv[:3][1:]) == ("postgres", ["-D", str(server.path / "data")])
    assert postmaster._look_with_ps(2**22 - 1) is None


def test_a_dead_server_is_no_trouble_for_the_last_one_out(ready: Path) -> None:
    server = EmbeddedServer.acquire(ready, FAST)
    kill(server.pid)
    server.release()
    assert is_stopped(ready)
    with EmbeddedServer.acquire(ready, FAST) as again:
        assert works(again)


def stale(home: Path, pid: int) -> None:
    """A pid file as a killed server leaves it, and the lock of its socket, naming `pid`."""
    said = f"{pid}\n{home}/data\n1700000000\n5432\n{home}/socket\n\n  5432001         0\nready   \n"
    (home / "data" / "postmaster.pid").write_text(said)
    (home / "socket" / ".s.PGSQL.5432.lock").write_text(said)


def test_a_stale_pid_file_whose_number_is_a_stranger(ready: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        stale(ready, stranger.pid)
        assert is_stopped(ready)
        with EmbeddedServer.acquire(ready, FAST) as server:
            assert works(server)
        assert stranger.poll() is None
        stranger.kill()


def test_a_stale_pid_file_whose_number_is_another_postgres(folder: Path, ready: Path) -> None:
    with EmbeddedServer.acquire(folder / "other", FAST) as other:
        assert other.pid
        stale(ready, other.pid)
        assert is_stopped(ready)
        with EmbeddedServer.acquire(ready, FAST) as server:
            assert works(server)
            assert server.pid != other.pid
        assert works(other)


def test_a_stale_pid_file_whose_number_is_a_child_of_this_server(ready: Path) -> None:
    with EmbeddedServer.acquire(ready, FAST) as server, psycopg.connect(server.dsn("postgres")) as connection:
        assert not postmaster.is_postmaster(connection.info.backend_pid, ready / "data")


def test_a_zombie_is_not_a_server(ready: Path) -> None:
    with subprocess.Popen(["true"]) as child:
        eventually(lambda: (found := postmaster.look(child.pid)) and found.state == "Z")
        assert postmaster.gone(child.pid)
        stale(ready, child.pid)
        with EmbeddedServer.acquire(ready, FAST) as server:
            assert works(server)


def test_a_half_written_pid_file(ready: Path) -> None:
    for text in ("", "12", "not a number\n", "-1\n", "123456789\n/some"):
        (ready / "data" / "postmaster.pid").write_text(text)
        assert is_stopped(ready)
        with EmbeddedServer.acquire(ready, FAST) as server:
            assert works(server)


def test_a_pid_file_of_another_container_is_left_alone_while_somebody_uses_the_folder(ready: Path) -> None:
    with EmbeddedServer.acquire(ready, FAST) as server:
        assert server.pid
        assert postmaster.stop(ready / "data")
        stale(ready, 2**22 - 1)
        (ready / "host").write_text("another container")
        before = (ready / "data" / "postmaster.pid").read_text()
        with pytest.raises(EmbeddedError, match="Another machine or container"):
            EmbeddedServer.acquire(ready, FAST)
        assert (ready / "data" / "postmaster.pid").read_text() == before
    with EmbeddedServer.acquire(ready, FAST) as server:
        assert works(server)
        assert (ready / "host").read_text() == host_identity()


def test_a_server_of_another_container_is_used_if_it_answers(ready: Path) -> None:
    with EmbeddedServer.acquire(ready, FAST) as server:
        pid = server.pid
        said = (ready / "data" / "postmaster.pid").read_text()
        (ready / "host").write_text("another container")
        (ready / "data" / "postmaster.pid").write_text(said.replace(f"{pid}\n", f"{2**22 - 1}\n", 1))
        with EmbeddedServer.acquire(ready, FAST) as other:
            assert works(other)
            assert other.pid is None
        (ready / "data" / "postmaster.pid").write_text(said)
        assert server.pid == pid


def test_initdb_killed_half_way_leaves_nothing_that_hurts(home: Path) -> None:
    group = subprocess.Popen(
        [sys.executable, "-c", USER, str(home)], start_new_session=True, stdin=subprocess.PIPE
    )
    with group:
        eventually(lambda: list(home.glob("data.new.*/PG_VERSION")))
        os.killpg(group.pid, signal.SIGKILL)
    assert not (home / "data").exists()
    assert status(home).exists is False
    with EmbeddedServer.acquire(home, FAST) as server:
        assert works(server)
        assert not list(home.glob("data.new*"))


def test_a_user_killed_in_initdb_lets_the_next_one_in(home: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", USER, str(home)], stdin=subprocess.PIPE) as killed:
        eventually(lambda: list(home.glob("data.new.*/PG_VERSION")))
        killed.kill()
    with EmbeddedServer.acquire(home, FAST) as server:  # the orphaned initdb is still writing
        assert works(server)
        eventually(lambda: not processes("initdb", home))
        assert works(server)


def test_a_forked_child_does_not_stop_the_server(ready: Path, user: Start) -> None:
    parent = user(ready)
    pid = parent.hear()["server"]
    parent.tell("fork-and-exit")
    assert parent.hear()["server"] == pid
    assert status(ready).users == 1
    parent.leave()
    assert is_stopped(ready)


def test_a_forked_child_with_its_own_hold_outlives_its_parent(ready: Path, user: Start) -> None:
    stay = ready.parent / "stay"
    parent = user(ready)
    pid = parent.hear()["server"]
    stay.touch()
    parent.tell("fork-own")
    assert parent.hear()["child"]
    eventually(lambda: status(ready).users == 2)
    for watcher in watchers(ready):  # the child alone must find itself the last one
        kill(watcher)
    parent.kill()
    assert status(ready).pid == pid
    stay.unlink()
    eventually(lambda: is_stopped(ready))


def test_a_hold_of_the_parent_is_of_no_use_in_the_child(server: EmbeddedServer) -> None:
    child = os.fork()
    if child == 0:
        try:
            server.ensure_running()
        except EmbeddedError:
            server.release()
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert works(server)
