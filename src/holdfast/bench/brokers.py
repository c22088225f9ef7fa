"""Servers that `boundaries` sends to: each in a process and a folder of its own, on loopback, until its block ends."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import HoldfastError

RABBIT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # of the Debian package
_PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/bin"


def program(name: str) -> str | None:
    """A program beside our Python, or on the path; None: there is none."""
    return shutil.which(name, path=_PATH)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def started(command: list[str], port: int, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """A process that listens on the port, until the block ends: its pid. It may start others: all of them end."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        command,
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        env=None if env is None else {**env},
        process_group=0,
    )
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None:
                raise HoldfastError(f"{command[0]} ended with {process.returncode} before it listened")
            time.sleep(0.02)
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


@contextlib.contextmanager
def nats(command: str) -> Iterator[str]:
    port = free_port()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        started([command, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder], port),
    ):
        yield f"nats://127.0.0.1:{port}"


@contextlib.contextmanager
def redis(command: str) -> Iterator[str]:
    """With an append-only file that is synced every second."""
    port = free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = [
            "--bind",
            "127.0.0.1",
            "--port",
            str(port),
            "--dir",
            folder,
            "--appendonly",
            "yes",
            "--save",
            "",
        ]
        with started([command, *options], port):
            yield f"redis://127.0.0.1:{port}"


@contextlib.contextmanager
def rabbit() -> Iterator[str]:
    """With a port mapper of its own: one that Erlang starts by itself would outlive us."""
    port, mapper, dist = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        own = {
            "HOME": folder,
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"holdfast{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(dist),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/logs",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2",
        }
        Path(folder, "plugins").write_text("[].\n", encoding="ascii")
        env = {name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")} | own
        with (
            started([program("epmd") or "epmd", "-port", str(mapper), "-address", "127.0.0.1"], mapper),
            started([str(RABBIT)], port, env),
        ):
            yield f"amqp://guest:guest@127.0.0.1:{port}/"


_KAFKA = """
import sys
from confluent_kafka import Producer
cluster = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "none", "log_level": 2})
print(",".join(f"{b.host}:{b.port}" for b in cluster.list_topics(timeout=30).brokers.values()), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def kafka() -> Iterator[str]:
    """The mock of a cluster that librdkafka has: three brokers that speak the protocol over TCP, and no disk."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _KAFKA], stdin=pipe, stdout=pipe, text=True
    ) as process:
        try:
            assert process.stdout is not None
            servers = process.stdout.readline().strip()
            if not servers:
                raise HoldfastError("the mock of a Kafka cluster did not start")
            yield f"kafka://{servers}"
        finally:
            process.kill()
