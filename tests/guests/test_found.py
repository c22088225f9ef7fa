"""Guests are found by what an object is. What is not installed is never imported, and what is not used neither."""

import subprocess
import sys

from holdfast.testing import Kit

LIBRARIES = ("asyncpg", "sqlalchemy", "sqlmodel", "django")

ENQUEUE = """
import psycopg
from holdfast import Holdfast, WrongConnection
app = Holdfast(sys.argv[1])

@app.task
def send() -> None: ...

with psycopg.connect(sys.argv[1]) as conn:
    send.using(conn=conn).enqueue()
    try:
        send.using(conn=object()).enqueue()
    except WrongConnection as error:
        assert "cannot use" in str(error)
    else:
        raise AssertionError("an unknown object was taken")
"""

# Before anything else: these cannot be imported.
BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in LIBRARIES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
for name in LIBRARIES:
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(name + " can be imported")
"""

SESSION = """
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(sys.argv[1]))
with Session(engine) as session, session.begin():
    send.using(conn=session).enqueue()
engine.dispose()
"""

LISTED = f"""
import sys
{ENQUEUE}
print(sorted(set(m.split(".")[0] for m in sys.modules) & set({LIBRARIES!r})))
"""


def run(code: str, kit: Kit) -> str:
    done = subprocess.run([sys.executable, "-c", code, kit.url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_enqueue_where_the_other_libraries_are_not_installed(kit: Kit) -> None:
    run(BLOCKED.replace("LIBRARIES", repr(LIBRARIES)) + ENQUEUE, kit)
    assert len(kit.jobs()) == 1


def test_a_session_where_nothing_async_is_installed(kit: Kit) -> None:
    missing = ("asyncpg", "greenlet", "sqlmodel", "django")
    run(BLOCKED.replace("LIBRARIES", repr(missing)) + ENQUEUE + SESSION, kit)
    assert len(kit.jobs()) == 2


def test_enqueue_by_psycopg_imports_no_other_library(kit: Kit) -> None:
    assert run(LISTED, kit) == "[]"
    assert len(kit.jobs()) == 1
