"""The warehouse: a web server of somebody else, which checks the signature of a webhook and writes down what came.

Its ledger is a file, one line per request, written before the reply: what it acknowledged it has.
"""

import json
import os
import sys
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from holdfast import StandardWebhooks, VerificationFailed


class Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ledger: Path
    verifier: StandardWebhooks

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): self.headers.get_all(name) or [] for name in self.headers}
        try:
            self.verifier.verify(headers, body, datetime.now(UTC))
        except VerificationFailed:
            return self._reply(401)
        line = json.dumps({"id": self.headers["webhook-id"], **json.loads(body)})
        with self.ledger.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        return self._reply(204)

    def _reply(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nothing: the ledger says it all."""


def main() -> None:
    port, ledger = sys.argv[1:]
    Door.ledger = Path(ledger)
    Door.verifier = StandardWebhooks(os.environ["WAREHOUSE_SECRET"])
    ThreadingHTTPServer(("127.0.0.1", int(port)), Door).serve_forever()


if __name__ == "__main__":
    main()
