"""`holdfast web` and `holdfast dev`, as processes."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

import httpx
import pytest
from tests.conftest import wait_until, within
from tests.surface.running import Cli

from holdfast.testing import Kit


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def read_address(stream: IO[str]) -> str:
    for line in stream:
        if found := re.search(r"http://\S+/login\?token=\S+", line):
            return found[0]
    raise AssertionError("no address was printed")


def test_it_prints_an_address_that_lets_one_browser_in(kit: Kit, tmp_path: Path) -> None:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "web",
        "-d",
        kit.url,
        "--port",
        str(port),
        "--title",
        "the shop",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        assert running.stderr is not None
        try:
            address = read_address(running.stderr)
            with httpx.Client(timeout=within(10)) as browser:
                wait_until(lambda: _answers(f"http://127.0.0.1:{port}/"), "it answers")
                assert browser.get(f"http://127.0.0.1:{port}/").status_code == 401
                assert browser.get(address).status_code == 303
                page = browser.get(f"http://127.0.0.1:{port}/")
                assert (page.status_code, "the shop" in page.text) == (200, True)
                assert (
                    browser.get(f"http://127.0.0.1:{port}/", headers={"host": "evil.example"}).status_code
                    == 421
                )
                assert httpx.get(address).status_code == 401
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(within(20)) in (0, 130, -2)


def test_several_databases_stand_behind_one_switcher(kit: Kit, tmp_path: Path) -> None:
    """One of them is away, which keeps nobody from the other; the addresses may stand in the environment."""
    port = free_port()
    (tmp_path / "shop.py").write_text(DEV.format(url=kit.url))
    away = "postgresql://nobody@127.0.0.1:9/none"
    environment = {**os.environ, "HOLDFAST_WEB_DATABASES": f"shop=shop:app billing={away}"}
    command = [sys.executable, "-m", "holdfast", "web", "--port", str(port)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as running:
        assert running.stderr is not None
        try:
            address = read_address(running.stderr)
            wait_until(lambda: _answers(f"http://127.0.0.1:{port}/"), "it answers")
            with httpx.Client(timeout=within(20), follow_redirects=True) as browser:
                page = browser.get(address)
                assert str(page.url) == f"http://127.0.0.1:{port}/d/shop/"
                assert 'href="/d/billing/"' in page.text
                assert "hello" in browser.get(f"http://127.0.0.1:{port}/d/shop/find?q=hello").text
                assert browser.get(f"http://127.0.0.1:{port}/d/billing/").status_code == 503
        finally:
            running.send_signal(signal.SIGINT)
        running.stderr.read()
        assert running.wait(within(20)) in (0, 130, -2)


def _answers(address: str) -> bool:
    try:
        return httpx.get(address).status_code == 401
    except httpx.TransportError:
        return False


DEV = """
from holdfast import Holdfast
app = Holdfast({url!r})

@app.task
def hello() -> None: ...
"""


def test_dev_serves_it_too(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(DEV.format(url=kit.url))
    port = free_port()
    command = [sys.executable, "-m", "holdfast", "dev", "shop:app", "--web-port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        assert running.stderr is not None
        try:
            address = read_address(running.stderr)
            wait_until(lambda: _answers(f"http://127.0.0.1:{port}/"), "it answers")
            with httpx.Client(timeout=within(10)) as browser:
                assert browser.get(address).status_code == 303
                assert "Overview" in browser.get(f"http://127.0.0.1:{port}/").text
        finally:
            running.send_signal(signal.SIGTERM)
        running.stderr.read()
        assert running.wait(within(20)) == 0


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(dsn, monkeypatch)


def test_it_does_not_serve_strangers(cli: Cli) -> None:
    assert cli.refused("web", "--host", "0.0.0.0").startswith("--host 0.0.0.0 can be reached by others")


def test_databases_that_cannot_be_meant_are_refused_without_their_address(cli: Cli) -> None:
    secret = "postgresql://mara:hunter2@db.example/shop?sslmode=require"
    for options, said in (
        (("--database", secret), "--database takes NAME=URL or NAME=MODULE:APP"),
        (("--database", "shop="), "--database takes NAME=URL or NAME=MODULE:APP"),
        (("--database", f"a={secret}", "--database", f"a={secret}"), "two databases are called 'a'"),
        (("--database", f"a={secret}"), "--database names what is served"),  # beside -d
    ):
        refused = cli.refused("web", *options)
        assert refused.startswith(said)
        assert "hunter2" not in refused


def test_a_port_that_is_taken_is_said(cli: Cli) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        said = cli.refused("web", "--port", str(sock.getsockname()[1]))
    assert said.endswith("cannot be listened on: Address already in use. Choose another: --port")


def test_without_its_libraries_it_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holdfast.web.serve", None)
    monkeypatch.delitem(sys.modules, "holdfast.web.serve")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.refused("web") == "the dashboard needs uvicorn. Install it: pip install 'holdfast-pg[web]'"
