"""The CPythons of this machine that we support, and an environment for each, with the pinned requirements and this package.

They are looked for among those of pyenv, on the PATH and in /usr/bin.
"""

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ("3.11", "3.12", "3.13")
_ASK = """
import json, platform, sys, sysconfig
print(json.dumps(["%d.%d" % sys.version_info[:2], platform.python_version(), sysconfig.get_config_var("CONFIG_ARGS") or ""]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    version: str  # 3.13
    release: str  # 3.13.0
    program: Path
    arguments: str  # of its configure, as far as it says


def interpreters() -> dict[str, Path]:
    """One for each version that is here."""
    found: dict[str, Path] = {}
    for one in every():
        found.setdefault(one.version, one.program)
    return found


def every() -> list[Interpreter]:
    """All that are here, by version, each release once: that of pyenv before the system's."""
    found: dict[str, Interpreter] = {}
    for program in _places():
        one = _ask(program)
        if one is not None:
            found.setdefault(one.release, one)
    return sorted(found.values(), key=lambda one: SUPPORTED.index(one.version))


def _places() -> list[Path]:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    places: list[Path] = []
    for version in SUPPORTED:
        places += sorted(pyenv.glob(f"{version}.*/bin/python{version}"), key=_patch, reverse=True)
        on_path = shutil.which(f"python{version}")
        places += [Path(on_path)] if on_path else []
        places.append(Path(f"/usr/bin/python{version}"))
    return places


def _patch(program: Path) -> int:
    number = re.fullmatch(r"\d+\.\d+\.(\d+)", program.parents[1].name)
    return int(number[1]) if number else -1


def _ask(program: Path) -> Interpreter | None:
    """None: it does not start, as a shim of pyenv for a version that is not chosen."""
    try:
        done = subprocess.run([program, "-c", _ASK], capture_output=True, text=True, check=False)
        version, release, arguments = json.loads(done.stdout)
    except (OSError, ValueError):
        return None
    return Interpreter(version, release, program, arguments) if version in SUPPORTED else None


def environment(name: str, program: Path) -> Path:
    """Its Python, with the pinned requirements and this package."""
    folder = ROOT / ".venv" / "pythons" / name
    python, stamp = folder / "bin" / "python", folder / ".installed"
    pins = ROOT / "requirements" / "dev.txt"
    newest = max(pins.stat().st_mtime, (ROOT / "pyproject.toml").stat().st_mtime)
    if stamp.exists() and stamp.stat().st_mtime > newest:
        return python
    print(f"== an environment for CPython {name}", flush=True)
    began = time.monotonic()
    subprocess.run([program, "-m", "venv", "--clear", folder], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", str(pins)], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], check=True)
    stamp.touch()
    print(f"-- {time.monotonic() - began:.0f} s", flush=True)
    return python
