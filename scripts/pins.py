"""Write requirements/dev.txt: what a fresh environment gets from pyproject.toml and dev.in today, pinned, without hosts."""

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        wanted = (ROOT / "requirements/dev.in").read_text(encoding="utf-8").splitlines()
        names = [line for line in wanted if line and not line.startswith("#")]
        subprocess.run([python, "-m", "pip", "install", "-q", f"{ROOT}[embedded]", *names], check=True)
        frozen = subprocess.run(
            [python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    pins = sorted((p for p in frozen if re.fullmatch(r"[A-Za-z0-9_.-]+==[^ ]+", p)), key=str.lower)
    (ROOT / "requirements/dev.txt").write_text("\n".join(pins) + "\n", encoding="utf-8")
    print(f"{len(pins)} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
