"""Build the documentation into build/site, or into the folder that is named. Open index.html there: no server is needed."""

import shutil
import sys
import tempfile
from pathlib import Path

import psycopg

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.site.build import build  # noqa: E402

from holdfast.db import migrate  # noqa: E402
from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer  # noqa: E402


def main() -> int:
    target = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "site"
    home = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    home.chmod(0o755)  # the server of a root process runs as somebody else
    try:
        with EmbeddedServer.acquire(home / "pg", EmbeddedOptions(durable=False)) as server:
            server.ensure_database()
            migrate.up(server.dsn())
            with psycopg.connect(server.dsn()) as conn:
                site = build(conn, target)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(f"{len(site.pages)} pages: {target / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
