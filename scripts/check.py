"""Static checks, all of them, and what each took. Run by `make check`."""

import subprocess
import sys
import time
from pathlib import Path

BIN = Path(sys.executable).parent
STEPS: list[tuple[str, list[str]]] = [
    ("ruff check", [str(BIN / "ruff"), "check", "."]),
    ("ruff format", [str(BIN / "ruff"), "format", "--check", "."]),
    ("mypy --strict", [str(BIN / "mypy")]),
    ("pyright, public surface", [str(BIN / "pyright"), "src/holdfast"]),
    ("import layers", [str(BIN / "lint-imports"), "--no-cache"]),
    ("typing files", [sys.executable, "scripts/check_typing.py"]),
    ("words, docs, commits", [sys.executable, "scripts/prose.py"]),
]


def main() -> int:
    failed = []
    for name, command in STEPS:
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        verdict = "ok" if done.returncode == 0 else "FAILED"
        print(f"{verdict:6} {name:28} {time.monotonic() - began:5.1f} s", flush=True)
        if done.returncode != 0:
            failed.append(name)
            print(done.stdout + done.stderr, flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
