"""`holdfast worker --health-port` as a process, and traces that reach a child process."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import wait_until

from holdfast.testing import Kit

SHOP = """
import os, time
from pathlib import Path
from holdfast import Holdfast

if "SPANS" in os.environ:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    out = open(os.environ["SPANS"], "a")
    provider = TracerProvider()
    exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

app = Holdfast()


@app.task
def gated(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


@app.task(process=True)
def heavy() -> None:
    trace.get_current_span().set_attribute("pid", os.getpid())
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, kit: Kit) -> Iterator[Start]:
    (tmp_path / "shop.py").write_text(SHOP)
    started: list[subprocess.Popen[str]] = []

    def make(*words: str, **environment: str) -> "subprocess.Popen[str]":
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "worker", "shop:app", *words],
                cwd=tmp_path,
                env={**os.environ, "HOLDFAST_DATABASE_URL": kit.url, **environment},
                stderr=log,
                text=True,
            )
        started.append(process)
        return process

    yield make
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(50)


def lines(folder: Path, event: str) -> list[dict[str, Any]]:
    whole = (folder / "log").read_text().split("\n")[:-1]
    return [line for line in map(json.loads, whole) if line["event"] == event]


def address(folder: Path) -> str:
    wait_until(lambda: lines(folder, "health.listening"), "the port listens")
    return str(lines(folder, "health.listening")[0]["address"])


@pytest.mark.parametrize(
    ("words", "environment"),
    [(("--health-port", "0"), {}), ((), {"HOLDFAST_HEALTH_PORT": "0"})],
    ids=["option", "variable"],
)
def test_a_worker_process_from_start_to_drain(
    kit: Kit, start: Start, tmp_path: Path, words: tuple[str, ...], environment: dict[str, str]
) -> None:
    process = start(*words, **environment)
    url = address(tmp_path)
    wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 200, "ready")
    assert httpx.get(f"{url}/livez").json() == {"status": "ok", "reasons": []}
    kit.app.send("gated", {"path": str(tmp_path / "gate")})
    wait_until(lambda: "holdfast_worker_running 1.0" in httpx.get(f"{url}/metrics").text, "it runs")
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 503, "draining")
    assert httpx.get(f"{url}/readyz").json()["reasons"] == ["the worker is draining"]
    assert httpx.get(f"{url}/livez").status_code == 200
    (tmp_path / "gate").touch()
    assert process.wait(100) == 0
    assert [row["status"] for row in kit.jobs()] == ["completed"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/livez")


def test_a_port_in_use_is_one_line_and_the_users_mistake(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert start("--health-port", str(number)).wait(100) == 2
    last = (tmp_path / "log").read_text().splitlines()[-1]
    assert last.startswith(
        f"holdfast: health port {number} of 127.0.0.1 is in use, perhaps by another worker."
    )
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_span_of_a_process_handler_is_in_the_trace(kit: Kit, start: Start, tmp_path: Path) -> None:
    sent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    kit.app.send("heavy", {}, metadata={"traceparent": sent})
    process = start("--exit-when-idle", SPANS=str(tmp_path / "spans"))
    assert process.wait(150) == 0, (tmp_path / "log").read_text()
    assert [row["status"] for row in kit.jobs()] == ["completed"]
    (span,) = [json.loads(line) for line in (tmp_path / "spans").read_text().splitlines()]
    assert (span["name"], span["context"]["trace_id"]) == ("process heavy", f"0x{sent.split('-')[1]}")
    assert span["parent_id"] == f"0x{sent.split('-')[2]}"
    assert span["attributes"]["holdfast.outcome"] == "completed"
    assert span["attributes"]["pid"] != process.pid  # it was current in the child
