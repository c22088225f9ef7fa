"""docs/api.md says which modules are public: they exist, and no other is shown to users as something to import."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
PUBLIC = re.findall(r"^\| `(holdfast[\w.]*)` \|", PAGE, re.MULTILINE)


def test_every_public_module_exists() -> None:
    assert PUBLIC
    for name in PUBLIC:
        importlib.import_module(name)


def test_documents_import_public_modules_only() -> None:
    places = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for path in places:
        text = path.read_text(encoding="utf-8")
        shown = set(re.findall(r"(?:from|import) (holdfast(?:\.\w+)*)", text))
        assert shown <= set(PUBLIC), path.name
