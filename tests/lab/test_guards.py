"""What a lab must never do: find somebody's database, end somebody's process, be reached by others, be mounted."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.conftest import wait_until, within
from tests.web.test_web_command import free_port, read_address

from holdfast.cli.lab import lab_command
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.lab.crew import Member, _stamp_by_ps, stamp
from holdfast.lab.fork_client import clean_environment
from holdfast.lab.hall import Hall
from holdfast.lab.place import MARKER, LabHost, refuse_database, sweep
from holdfast.lab.scenes import scene_of
from holdfast.lab.site import lab_app
from holdfast.lab.stage import Stage
from holdfast.web.identity import Identity, OneTimeUrl


@pytest.mark.parametrize("name", ["DATABASE_URL", "HOLDFAST_DATABASE_URL", "PGHOST"])
def test_it_refuses_a_database(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        refuse_database({name: "postgresql://prod.example/shop"})
    assert str(refused.value) == (
        f"{name} names a database, and the lab uses none: it kills and freezes workers, on a server of its own alone. "
        f"Start it without: env -u {name} holdfast lab"
    )


def test_it_refuses_the_database_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('database_url = "postgresql://prod.example/shop"')
    with pytest.raises(ConfigurationError, match="names a database, and the lab uses none"):
        refuse_database({"HOLDFAST_CONFIG": str(file)})


def test_the_command_refuses_it_too(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast", "lab", "--play", "1"],
        env=clean_environment() | {"DATABASE_URL": "postgresql://prod.example/shop"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=within(60),
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("holdfast: DATABASE_URL names a database, and the lab uses none")


def test_its_processes_know_no_other_database(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "PGHOST", "HOLDFAST_DATABASE_URL", "HOLDFAST_LEASE"):
        monkeypatch.setenv(name, "1")
    assert not {name for name in clean_environment() if name.startswith(("HOLDFAST_", "PG", "DATABASE_URL"))}


@pytest.fixture
def stranger() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def test_it_ends_no_process_but_its_own(stranger: "subprocess.Popen[bytes]") -> None:
    """A pid that came to mean somebody else: the start time tells."""
    mine = Member("A", stranger.pid, "12345")
    for act in (mine.kill, mine.freeze, mine.wake, mine.drain):
        with pytest.raises(
            HoldfastError, match=r"worker A \(pid \d+\) is gone, and this pid is not the lab's"
        ):
            act()
    assert mine.state == "gone"
    assert stranger.poll() is None
    found = stamp(stranger.pid)
    assert found is not None
    assert found[1] not in "TtZ"


def test_a_scene_that_is_closed_leaves_no_worker(place: LabHost) -> None:
    with closing(Stage(place, scene_of(1))) as stage:
        members = [*stage.crew.alive, stage.start()]
        members[0].freeze()  # also one that cannot hear
    assert [stamp(member.pid) is None or not member.is_alive for member in members] == [True, True]


LAB = """
import sys, time
from pathlib import Path
from holdfast.lab.fork_client import ForkClient
nursery = ForkClient()
started = [nursery.start("one_receipt", {"HOLDFAST_DATABASE_URL": sys.argv[1]}, Path("log")) for _ in range(2)]
print(*started, nursery._process.pid, flush=True)
time.sleep(600)
"""


def test_workers_end_with_a_lab_that_is_killed(place: LabHost, tmp_path: Path) -> None:
    """kill -9 of the lab: neither a worker that runs nor one that is frozen stays, nor what forked them."""
    url = place.fresh()
    with subprocess.Popen(
        [sys.executable, "-c", LAB, url],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=clean_environment(),
    ) as lab:
        assert lab.stdout is not None
        pids = [int(word) for word in lab.stdout.readline().split()]
        members = [Member(str(pid), pid, (stamp(pid) or ("", ""))[0]) for pid in pids]
        wait_until(
            lambda: (tmp_path / "log").read_text().count("worker.started") == 2, "both workers run", 60
        )
        members[1].freeze()
        lab.kill()
    try:
        wait_until(lambda: not any(member.is_alive for member in members), "all of them are gone")
    finally:
        for member in members:
            if member.is_alive:
                member.kill()
        place.leave(url)


def test_it_is_on_this_machine_alone_and_lets_one_browser_in(tmp_path: Path) -> None:
    port = free_port()
    command = ["nohup", sys.executable, "-m", "holdfast", "lab", "--port", str(port)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=clean_environment(),
    ) as running:
        assert running.stderr is not None
        try:
            address = read_address(running.stderr)
            assert address.startswith(f"http://127.0.0.1:{port}/")
            with httpx.Client(timeout=within(30)) as browser:
                assert browser.get(f"http://127.0.0.1:{port}/").status_code == 401
                running.send_signal(signal.SIGHUP)  # the terminal closes, and nohup said to ignore it
                assert browser.get(address).status_code == 303
                assert "Live lab" in browser.get(f"http://127.0.0.1:{port}/", follow_redirects=True).text
                evil = browser.get(f"http://127.0.0.1:{port}/", headers={"host": "evil.example"})
                assert evil.status_code == 421
            with pytest.raises(OSError), socket.create_connection((_other_address(), port), timeout=2):
                pass
        finally:
            found = lefts(running.pid)
            running.send_signal(signal.SIGTERM)
        running.stderr.read()
        running.wait(within(30))
    assert len(found) == 1
    assert lefts(running.pid) == []  # as after Ctrl-C


def lefts(pid: int) -> list[Path]:
    """Of a lab in the process of this pid: its folder."""
    return list(Path(tempfile.gettempdir()).glob(f"holdfast-lab-{pid}-*"))


def left(name: str, marker: bytes | None, *, root: Path | None = None) -> Path:
    folder = (root or Path(tempfile.gettempdir())) / name
    (folder / "scene").mkdir(parents=True)
    if marker is not None:
        (folder / MARKER).write_bytes(marker)
    return folder


def test_a_lab_removes_what_one_left_that_was_killed(place: LabHost) -> None:
    marker = (place.folder / MARKER).read_bytes()
    gone = left(f"holdfast-lab-{2**22 + 7}-1-abcdefg_", marker)  # no pid is that large
    again = left(f"holdfast-lab-{os.getpid()}-1-abcdefg0", marker)  # of another process of this pid
    own = lefts(os.getpid())
    assert place.folder in own
    sweep()
    assert not gone.exists()
    assert sorted(lefts(os.getpid())) == sorted(set(own) - {again})


def test_a_lab_leaves_what_none_made_and_what_it_cannot_judge(
    place: LabHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = (place.folder / MARKER).read_bytes()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = [
        left("holdfast-lab-2026-11-19-results", marker, root=tmp_path),
        left("holdfast-lab-²-1-abcdefgh", marker, root=tmp_path),
        left("holdfast-lab-4194311-1-nomarker", None, root=tmp_path),
        left("holdfast-lab-4194311-1-garbage_", b"\xff", root=tmp_path),
    ]
    unreadable = left("holdfast-lab-4194311-1-pointer_", marker, root=tmp_path)
    (unreadable / "postgres").mkdir()
    (unreadable / "postgres" / "elsewhere").write_bytes(b"\xff")
    gone = left("holdfast-lab-4194311-1-zzzzzzzz", marker, root=tmp_path)
    sweep()
    assert [folder.name for folder in (*kept, unreadable) if not (folder / "scene").exists()] == []
    assert not gone.exists()  # it went on behind those


def test_a_lab_leaves_what_another_machine_or_container_made(
    place: LabHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may share the folder: a pid of theirs is looked for in vain here."""
    other = (place.folder / MARKER).read_bytes() + b"1"  # of the pid namespace, where there are some
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = left("holdfast-lab-4194311-1-abcdefgh", other, root=tmp_path)
    sweep()
    assert (folder / "scene").exists()


def test_a_start_that_ps_tells_is_the_same_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no /proc: two labs may have two zones and languages."""
    starts = set()
    for zone in ("UTC", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        starts.add((_stamp_by_ps(os.getpid()) or ("",))[0])
    assert len(starts) == 1
    assert starts != {""}


def _other_address() -> str:
    """Another address of this machine: on Linux all of 127.0.0.0/8 is its own."""
    return "127.0.0.2"


async def test_it_is_never_mounted(place: LabHost) -> None:
    made = lab_app(Hall(place), OneTimeUrl(Identity("mara", "admin")))
    api = Starlette(routes=[Mount("/ops", made)])
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=api), base_url="http://127.0.0.1"
    ) as client:
        with pytest.raises(ConfigurationError, match="the lab was mounted at '/ops'"):
            await client.get("/ops/scene/1")


def test_what_the_command_refuses() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^--unsafe and --json belong to --play SCENE\. In the browser"
    ):
        lab_command(as_json=True)
    with pytest.raises(ConfigurationError, match=r"^there is no scene 77 "):
        lab_command(play=77)
