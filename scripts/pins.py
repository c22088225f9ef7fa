"""Write requirements/dev.txt: what a fresh environment gets from pyproject.toml and dev.in today, pinned, without hosts.

Each pin has the hash of every file of that release, so that any platform can install it and none gets another file.
`--keep` takes the versions that are there and writes their hashes anew.
"""

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements/dev.txt"
PIN = re.compile(r"([A-Za-z0-9_.-]+==[^ ;\\]+)")

# Runs in the fresh environment: its pip knows which index it is to ask, and how to read the name of a file.
HASHES = r"""
import os, re, sys, urllib.request
from pip._internal.models.index import PyPI
from pip._vendor.packaging.utils import InvalidSdistFilename, InvalidWheelFilename
from pip._vendor.packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from pip._vendor.packaging.version import InvalidVersion, Version

def version(name):
    try:
        return (parse_wheel_filename if name.endswith(".whl") else parse_sdist_filename)(name)[1]
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        return None

index = (os.environ.get("PIP_INDEX_URL") or PyPI.simple_url).rstrip("/")
for pin in sys.argv[1:]:
    name, wanted = pin.split("==")
    page = urllib.request.urlopen(f"{index}/{canonicalize_name(name)}/").read().decode()
    found = re.findall(r'href="[^"#]*#sha256=([0-9a-f]{64})"[^>]*>\s*([^<]+?)\s*</a>', page)
    hashes = sorted({digest for digest, file in found if version(file) == Version(wanted)})
    if not hashes:
        sys.exit(f"{pin}: the index has no hash of it")
    print(" \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in hashes)]))
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        pins = _kept() if "--keep" in sys.argv else _newest(python)
        text = subprocess.run(
            [python, "-c", HASHES, *pins], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    PINS.write_text(text, encoding="utf-8")
    print(f"{len(pins)} pins, {text.count('--hash=')} hashes")
    return 0


def _kept() -> list[str]:
    return [found[1] for line in PINS.read_text(encoding="utf-8").splitlines() if (found := PIN.match(line))]


def _newest(python: str) -> list[str]:
    wanted = (ROOT / "requirements/dev.in").read_text(encoding="utf-8").splitlines()
    names = [line for line in wanted if line and not line.startswith("#")]
    subprocess.run([python, "-m", "pip", "install", "-q", f"{ROOT}[embedded]", *names], check=True)
    frozen = subprocess.run(
        [python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return sorted((p for p in frozen if PIN.fullmatch(p)), key=str.lower)


if __name__ == "__main__":
    sys.exit(main())
