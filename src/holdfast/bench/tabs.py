"""Open browsers: a dashboard in a process of its own, and streams that are read and thrown away."""

import contextlib
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPConnection

import psycopg

from .brokers import free_port, started
from .crew import environment
from .processor import used_by

EACH = 20  # streams of one person
PATIENCE = 60.0
BACKENDS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
)


class Tabs:
    """A dashboard with that many streams of its overview."""

    def __init__(self, url: str, pid: int, port: int, count: int, others: set[int]) -> None:
        self._url, self._pid, self._others = url, pid, others
        self._own: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._frames = dict.fromkeys(range(count), 0)
        self.sent = 0  # bytes
        page = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        page.request(
            "GET", "/", headers={"X-Bench-Name": "person-0"}
        )  # as a browser does: the doctor has looked then
        if page.getresponse().status != HTTPStatus.OK:
            raise RuntimeError("the overview of the dashboard failed")
        page.close()
        for n in range(count):
            sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
            head = f"GET /live?topics=overview HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Bench-Name: person-{n // EACH}\r\n\r\n"
            sock.sendall(head.encode())
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, n)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.2):
                assert isinstance(key.fileobj, socket.socket)
                got = key.fileobj.recv(65536)
                self._frames[key.data] += got.count(b"event: ")
                self.sent += len(got)
                if not got:
                    self._selector.unregister(key.fileobj)

    @property
    def looks(self) -> int:
        """The number of messages in the first of them: its clock changes with every query."""
        return self._frames[0]

    def wait(self) -> None:
        """Until each has received everything so far, and the changes since."""
        deadline = time.monotonic() + PATIENCE
        while min(self._frames.values()) < 2:
            if time.monotonic() > deadline:
                raise TimeoutError("a stream of the dashboard says nothing")
            time.sleep(0.05)
        with psycopg.connect(self._url, autocommit=True) as conn:  # later ones may be those of a drain
            seen = {int(pid) for (pid,) in conn.execute(BACKENDS).fetchall()}
            self._own = seen - self._others - {conn.info.backend_pid}

    def used(self) -> float:
        """Seconds of the processor so far: of the dashboard, and of its connections in the server."""
        return used_by(self._pid, *self._own)

    def used_here(self) -> float:
        """The same of the dashboard's process alone."""
        return used_by(self._pid)

    def close(self) -> None:
        self._ended.set()
        self._thread.join(10)
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()


@contextlib.contextmanager
def open_tabs(url: str, count: int) -> Iterator[Tabs]:
    """Streams that have begun. Connections that are there before are not the dashboard's."""
    with psycopg.connect(url, autocommit=True) as conn:
        others = {int(pid) for (pid,) in conn.execute(BACKENDS).fetchall()}
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "holdfast.bench.web_app:asgi", "--host", "127.0.0.1"]
    options = ["--port", str(port), "--log-level", "error", "--no-access-log"]
    with started([*command, *options], port, environment(url)) as pid:
        tabs = Tabs(url, pid, port, count, others)
        try:
            tabs.wait()
            yield tabs
        finally:
            tabs.close()
