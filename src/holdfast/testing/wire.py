"""Connections as networks break them, between a transport and its server: for the conformance suite."""

import contextlib
import socket
import threading


class Wire:
    """Ports of the loopback that lead to servers. What is sent arrives, until the wire is broken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._listeners: list[socket.socket] = []
        self._is_silent = self._loses_reply = False

    def lead_to(self, host: str, port: int) -> int:
        """A port that leads there."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(listener, host, port), daemon=True).start()
        return int(listener.getsockname()[1])

    def fall_silent(self) -> None:
        """Half-open: nothing arrives any more in either direction, also on new connections, and none is closed."""
        self._is_silent = True

    def lose_reply(self) -> None:
        """The next that a server says is lost, and with it every connection."""
        self._loses_reply = True

    def heal(self) -> None:
        self._is_silent = self._loses_reply = False

    def close(self) -> None:
        for listener in self._listeners:
            _end(listener)
            listener.close()
        self._cut()

    def _cut(self) -> None:
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            _end(end)

    def _accept(self, listener: socket.socket, host: str, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client, host, port), daemon=True).start()

    def _serve(self, client: socket.socket, host: str, port: int) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection((host, port)) as server:
            with self._lock:
                self._ends += [client, server]
            back = threading.Thread(target=self._copy, args=(server, client, True), daemon=True)
            back.start()
            self._copy(client, server, False)
            back.join()

    def _copy(self, source: socket.socket, target: socket.socket, are_replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._is_silent:
                    continue
                if are_replies and self._loses_reply:
                    self._loses_reply = False
                    self._cut()
                    break
                target.sendall(data)
        _end(source)
        _end(target)


def _end(found: socket.socket) -> None:
    with contextlib.suppress(OSError):
        found.shutdown(socket.SHUT_RDWR)
