"""TLS in front of a server that speaks none: it ends here, and the bytes go on over the loopback."""

import contextlib
import socket
import ssl
import subprocess
import threading
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"  # how a client of PostgreSQL asks for TLS


def certificate(folder: Path) -> ssl.SSLContext:
    """A certificate for 127.0.0.1 in a folder, and the context that trusts it."""
    made = ["-out", str(folder / "cert.pem"), "-keyout", str(folder / "key.pem"), "-days", "1", "-nodes"]
    named = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(["openssl", "req", "-x509", *kind, *made, *named], check=True, capture_output=True)
    return ssl.create_default_context(cafile=folder / "cert.pem")


class TlsProxy:
    """`target` is a port, or the address of a PostgreSQL database. The certificate is in `folder`."""

    def __init__(self, target: int | str, folder: Path) -> None:
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _upstream(self) -> socket.socket:
        if isinstance(self._target, int):
            return socket.create_connection(("127.0.0.1", self._target))
        info = conninfo_to_dict(self._target)
        host, port = str(info.get("host") or "127.0.0.1"), int(info.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        end = socket.socket(socket.AF_UNIX)
        end.connect(f"{host}/.s.PGSQL.{port}")
        return end

    def _serve(self, bare: socket.socket) -> None:
        try:
            if isinstance(self._target, str):
                if bare.recv(len(SSL_REQUEST)) != SSL_REQUEST:
                    bare.close()
                    return
                bare.sendall(b"S")
            client = self._context.wrap_socket(bare, server_side=True)
        except OSError:  # also of a client that does not trust us
            bare.close()
            return
        server = self._upstream()
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()
        client.close()
        server.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
