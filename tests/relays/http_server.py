"""A program: an HTTP server that stores what is posted below /in, one file per path, on disk before it says so.

`python http_server.py PORT FOLDER`. PUT /admin/NAME makes a path, GET /admin/NAME reads it; one that begins with `full-`
has no room.
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(sys.argv[2])
LOCK = threading.Lock()


def file_of(name: str) -> Path:
    return FOLDER / f"{name.replace('/', '%2F')}.jsonl"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def reply(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @property
    def name(self) -> str:
        return self.path.removeprefix("/in/").removeprefix("/admin/")

    def do_PUT(self) -> None:
        file_of(self.name).touch()
        self.reply(201)

    def do_GET(self) -> None:
        lines = file_of(self.name).read_text().splitlines()
        self.reply(200, f"[{','.join(lines)}]".encode())

    def do_HEAD(self) -> None:
        self.reply(405 if file_of(self.name).exists() else 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if not file_of(self.name).exists():
            self.reply(404)
        elif self.name.startswith("full-"):
            self.reply(507)
        else:
            headers = {name.lower(): value for name, value in self.headers.items()}
            with LOCK, file_of(self.name).open("a") as file:
                file.write(json.dumps({"headers": headers, "body": body.decode()}) + "\n")
                file.flush()
                os.fsync(file.fileno())
            self.reply(200)


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
