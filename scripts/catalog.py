"""Write src/holdfast/sql/catalog.json: what this release's schema looks like in the catalogs of PostgreSQL 15, 16 and 18.

`holdfast doctor` compares a live database with it. Run it after every change of schema.sql; `--check` only compares.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.pg_versions import VERSIONS, binaries_for  # noqa: E402

from holdfast.db import migrate  # noqa: E402
from holdfast.db.database import Database  # noqa: E402
from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer  # noqa: E402
from holdfast.model.queue import QueueRules  # noqa: E402
from holdfast.settings import Settings  # noqa: E402
from holdfast.store.catalog import Facts, portable, read_catalog  # noqa: E402
from holdfast.store.queues import create_queue  # noqa: E402

FILE = ROOT / "src" / "holdfast" / "sql" / "catalog.json"


def catalog_of(binaries: Path) -> dict[str, Facts]:
    home = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    home.chmod(0o755)  # the server of a root process runs as somebody else
    try:
        with EmbeddedServer.acquire(home / "pg", EmbeddedOptions(durable=False, binaries=binaries)) as server:
            server.ensure_database()
            migrate.up(server.dsn())
            database = Database(server.dsn(), Settings())
            try:
                database.run(lambda: create_queue("ordered", rules=QueueRules("key")))
                database.run(lambda: create_queue("shared", rules=QueueRules(fair=True)))
                return portable(database.run(read_catalog))
            finally:
                database.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def merged() -> str:
    objects: dict[str, list[Facts]] = {}
    for major in VERSIONS:
        binaries = binaries_for(major)
        if binaries is None:
            sys.exit(
                f"PostgreSQL {major} is not on this machine: install it, the file must know all of {VERSIONS}"
            )
        for name, facts in catalog_of(binaries).items():
            known = objects.setdefault(name, [])
            if facts not in known:
                known.append(facts)
    lines = [f"{json.dumps(name)}: {json.dumps(objects[name], sort_keys=True)}" for name in sorted(objects)]
    majors = json.dumps(list(VERSIONS))
    return f'{{"majors": {majors}, "objects": {{\n' + ",\n".join(lines) + "\n}}\n"


def main() -> int:
    text = merged()
    if "--check" in sys.argv:
        same = FILE.read_text(encoding="utf-8") == text
        print(
            f"{FILE.name} is current"
            if same
            else f"{FILE.name} is not what schema.sql makes: run scripts/catalog.py"
        )
        return 0 if same else 1
    FILE.write_text(text, encoding="utf-8")
    print(f"wrote {len(text):,} bytes to {FILE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
