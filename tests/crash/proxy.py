"""A small TCP proxy on the loopback in front of PostgreSQL, to do what networks do.

It knows each connection by the application name in its first packet. It can cut a connection after the server has
done a statement but before the client hears of it, fall silent without closing anything, refuse newcomers, and heal.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.conftest import wait_until

_READY = b"Z\x00\x00\x00\x05"  # the server has finished with what it was sent


@dataclass
class _Link:
    """One client connection and its twin to the server."""

    client: socket.socket
    server: socket.socket
    name: str = ""
    silent: bool = False
    doomed: bool = False  # the reply to come is swallowed, then the connection is cut
    closed: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        self.closed.set()
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@dataclass
class _Cut:
    name: str
    text: bytes
    times: int
    done: int = 0


class Proxy:
    def __init__(self, dsn: str) -> None:
        self._info = conninfo_to_dict(dsn)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._threads: list[threading.Thread] = []
        self._cuts: list[_Cut] = []
        self._refusing = False
        self._rate: float | None = None
        self._swallowing: Callable[[str], bool] = lambda _: False
        self._closing = False
        self._start(self._accept)

    @property
    def url(self) -> str:
        """What clients connect to. Without encryption, so that statements can be read."""
        port = self._listener.getsockname()[1]
        return make_conninfo(
            **{**self._info, "host": "127.0.0.1", "port": port, "sslmode": "disable", "gssencmode": "disable"}
        )

    def cut_after(self, text: str, *, name: str, times: int = 1) -> None:
        """Cut connections called `name` after the server has done a statement with `text` in it; its answer is lost."""
        with self._lock:
            self._cuts.append(_Cut(name, text.encode(), times))

    @property
    def cuts(self) -> int:
        with self._lock:
            return sum(cut.done for cut in self._cuts)

    def until_cut(self, times: int = 1) -> None:
        wait_until(lambda: self.cuts >= times, f"{times} connections were cut", 20)

    def go_silent(self, wanted: Callable[[str], bool] = lambda _: True) -> int:
        """Half-open: connections whose name is wanted swallow every byte from now on, and so do new ones."""
        with self._lock:
            self._swallowing = wanted
            chosen = [link for link in self._links if wanted(link.name) and not link.closed.is_set()]
            for link in chosen:
                link.silent = True
            return len(chosen)

    def throttle(self, bytes_per_second: float | None) -> None:
        """Each connection brings answers this slowly from now on. None: as they come."""
        self._rate = bytes_per_second

    def refuse(self) -> None:
        """Close what is open and everything that comes."""
        self.refuse_newcomers()
        with self._lock:
            for link in self._links:
                link.close()

    def refuse_newcomers(self) -> None:
        """What is open goes on."""
        with self._lock:
            self._refusing = True

    def heal(self) -> None:
        """New connections work again. What is silent stays so: its peer has to notice."""
        with self._lock:
            self._refusing = False
            self._swallowing = lambda _: False
            self._cuts = []

    def close(self) -> None:
        self._closing = True
        with self._lock:
            for link in self._links:
                link.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(50)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                refused = self._refusing or self._closing
            if refused:
                client.close()
            else:
                self._start(self._serve, client)

    def _upstream(self) -> socket.socket:
        host, port = str(self._info.get("host") or "localhost"), int(self._info.get("port") or 5432)
        if host.startswith("/"):
            end = socket.socket(socket.AF_UNIX)
            try:
                end.connect(f"{host}/.s.PGSQL.{port}")
            except OSError:
                end.close()
                raise
            return end
        return socket.create_connection((host, port))

    def _serve(self, client: socket.socket) -> None:
        """Both directions of one connection; this thread forwards what the client says."""
        try:
            server = self._upstream()
        except OSError:
            client.close()
            return
        link = _Link(client, server)
        back = threading.Thread(target=self._answers, args=(link,), daemon=True)
        with self._lock:
            self._links.append(link)  # now: one that says nothing is closed too
        try:
            first = client.recv(65536)
            link.name = _application(first)
            with self._lock:
                link.silent = self._swallowing(link.name)
                if self._refusing or self._closing:
                    link.close()
            back.start()
            if first and not link.silent:
                server.sendall(first)
            self._questions(link)
        except OSError:
            pass
        finally:
            link.close()
            if back.ident:
                back.join(50)
            client.close()
            server.close()

    def _questions(self, link: _Link) -> None:
        before = b""
        while data := link.client.recv(65536):
            if link.silent or link.doomed:
                continue
            with self._lock:
                for cut in self._cuts:
                    seen = (
                        before[len(before) - len(cut.text) + 1 :] + data
                    )  # a text may be split between two packets
                    if cut.done < cut.times and cut.name == link.name and cut.text in seen:
                        cut.done += 1
                        link.doomed = True
            before = data
            link.server.sendall(data)

    def _answers(self, link: _Link) -> None:
        try:
            while data := link.server.recv(65536):
                if link.silent:
                    continue
                if link.doomed:
                    if _READY in data:
                        break
                    continue
                if self._rate is not None:
                    link.closed.wait(len(data) / self._rate)
                link.client.sendall(data)
        except OSError:
            pass
        if not link.silent:
            link.close()


def _application(startup: bytes) -> str:
    """The application name of a startup packet; empty for a cancel request."""
    parts = startup[8:].split(b"\x00")
    names = dict(zip(parts[::2], parts[1::2], strict=False))
    return names.get(b"application_name", b"").decode()


def backends(url: str, name: str) -> int:
    """How many server processes serve connections of that name in this database."""
    with psycopg.connect(url) as conn:
        row = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s",
            [name],
        ).fetchone()
    return int(row[0]) if row else 0
