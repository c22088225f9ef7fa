"""Django's own tests of a task backend, run on ours: `python scripts/django_suite.py [CHECKOUT]`.

CHECKOUT is a clone of Django 6, or of django-tasks, its backport. Without it, on Django 6, pip brings the sdist of the
version that is installed: the tests are in it, and not in the wheel. Those of the immediate backend are taken: what they say
of a task, its result, its errors and its logs holds for every backend. After every enqueue a worker of ours runs until
nothing is due (tests/django_app/eager.py). `make test-pythons` runs it on Django 6.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from holdfast.testing.servers import TestServer  # noqa: E402

EAGER = "tests.django_app.eager.EagerBackend"
PLACES = (Path("tests/tasks"), Path("tests/tests"))  # in Django, in the backport
# What these say of their backend is not so of ours, on purpose.
OTHERWISE = {
    "test_cannot_get_result": "results are found by their id",
    "test_cannot_refresh_result": "results are found by their id",
    "test_get_result_from_different_request": "results are found by their id",
    "test_cannot_pass_run_after": "run_after is supported",
    "test_throws_keyboard_interrupt": "a task runs in a worker, and not in whoever enqueues it",
    "test_doesnt_wait_until_transaction_commit_by_default": "nobody runs a task before its transaction has committed",
    "test_meaning_of_life_view": "it needs the pages of their project",
}
SETTINGS = """
from tests.django_app.settings import *

INSTALLED_APPS = [*(name for name in INSTALLED_APPS if not name.startswith("tests.")), "suite"]
HOLDFAST = {"POLL": "50ms"}
TASKS = {"default": {"BACKEND": "%s", "QUEUES": ["default"]}}
"""


def taken(checkout: Path, folder: Path) -> None:
    """Their tests and tasks as a package, on our backend."""
    place = next(
        (checkout / p for p in PLACES if (checkout / p / "test_immediate_backend.py").exists()), None
    )
    if place is None:
        sys.exit(
            f"{checkout} has no tests of an immediate backend: give a clone of Django 6 or of django-tasks"
        )
    tasks = place / "tasks.py" if (place / "tasks.py").exists() else place.parent / "tasks.py"
    package = folder / "suite"
    package.mkdir()
    (package / "__init__.py").touch()
    module, _, name = EAGER.rpartition(".")
    from holdfast.contrib.django.flavour import PACKAGE, exceptions  # of the one that is installed here

    invalid = "InvalidTask" if hasattr(exceptions, "InvalidTask") else "InvalidTaskError"

    for file in (tasks, place / "test_immediate_backend.py"):
        text = file.read_text(encoding="utf-8")
        for theirs in ("django.tasks", "django_tasks"):
            text = text.replace(f"{theirs}.backends.immediate.ImmediateBackend", EAGER)
            text = text.replace(f"from {theirs}.backends.immediate import ImmediateBackend",
                                f"from {module} import {name} as ImmediateBackend")  # fmt: skip
            text = text.replace(theirs, PACKAGE)
        text = text.replace("queue-1", "queue_1")  # a queue of ours has no hyphen, and the refusal says so
        text = re.sub(r"\bInvalidTask(Error)?\b", invalid, text)
        text = text.replace("from tests import tasks", "from . import tasks")
        for test, why in OTHERWISE.items():
            for kind in ("def", "async def"):
                mark = f"    @__import__('unittest').skip({why!r})\n    {kind} {test}("
                text = text.replace(f"    {kind} {test}(", mark)
        (package / file.name).write_text(text, encoding="utf-8")
    (folder / "suite_settings.py").write_text(SETTINGS % EAGER, encoding="utf-8")


def fetched(folder: Path) -> Path:
    """The sources of the Django that is installed, from wherever pip is told to look."""
    version = importlib.metadata.version("django")
    if int(version.split(".")[0]) < 6:
        sys.exit(
            f"Django {version} has no tests of a task backend: give a clone of Django 6 or of django-tasks"
        )
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--no-binary", "django", "-d", str(folder), f"django=={version}"], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(folder, filter="data")
    return archive.with_name(archive.name.removesuffix(".tar.gz"))


def main(words: list[str]) -> int:
    if len(words) > 1:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "sources").mkdir()
        taken(Path(words[0]) if words else fetched(folder / "sources"), folder)
        server = TestServer(folder / "server")
        try:
            env = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src"), str(ROOT)]),
                "DJANGO_SETTINGS_MODULE": "suite_settings",
                "STOCK_DATABASE": server.url("postgres"),
            }
            command = [
                sys.executable,
                "-m",
                "django",
                "test",
                "suite.test_immediate_backend",
                "--verbosity",
                "2",
            ]
            return subprocess.run([*command, "--noinput"], env=env, cwd=folder, check=False).returncode
        finally:
            server.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
