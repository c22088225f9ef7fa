"""Regenerate what documents quote: files, printed output, and the public API in docs/api.txt. `--check` only compares.

In a document, `<!-- file: PATH -->` or `<!-- output: COMMAND -->` stands before a code block and `<!-- end -->` after
it. `PATH#NAME` quotes what stands in the file between the lines `# NAME` and `# end`. Figures are scripts/performance.py's.
"""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- (file|output): (.+?) -->\n```(\w+)\n)(.*?)(```\n<!-- end -->)", re.DOTALL)


def content(kind: str, what: str) -> str:
    if kind == "file":
        path, _, name = what.partition("#")
        text = (ROOT / path).read_text(encoding="utf-8")
        return region(text, name) if name else text
    command = [str(Path(sys.executable).parent / what.split()[0]), *what.split()[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.rstrip() + "\n"


def region(text: str, name: str) -> str:
    """The lines between `# name` and `# end`."""
    lines = text.splitlines()
    marks = [line.strip() for line in lines]
    first = marks.index(f"# {name}") + 1
    return "\n".join(lines[first : marks.index("# end", first)]).strip("\n") + "\n"


def refreshed(text: str) -> str:
    return BLOCK.sub(lambda m: m[1] + content(m[2], m[3]) + m[6], text)


def _flat(value: type) -> tuple[list[type], dict[str, Any]]:
    """Its bases and members. What it is put together from, and what nobody can import, counts as its own."""
    import holdfast

    bases: list[type] = []
    members: dict[str, Any] = {}
    for base in reversed(value.__bases__):
        if (
            base.__module__.startswith(("holdfast.shapes", "holdfast.tasks.registry", "holdfast.registry"))
            and base is not holdfast.Registry
        ):
            more, inner = _flat(base)
            members |= inner
        else:
            more = [base]
        bases = [*more, *(b for b in bases if b not in more)]
    if len(bases) > 1:
        bases = [base for base in bases if base is not object]
    return bases, {**members, **vars(value)}


def describe(name: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        bases, members = _flat(value)
        lines = [f"class {name}({', '.join(b.__name__ for b in bases)})"]
        for member, found in sorted(members.items()):
            if member.startswith("_") and member not in ("__init__", "__enter__", "__aenter__", "__call__"):
                continue
            if isinstance(found, property):
                lines.append(f"    {member}: property")
            elif inspect.isfunction(found):
                prefix = "async " if inspect.iscoroutinefunction(found) else ""
                lines.append(f"    {prefix}{member}{inspect.signature(found)}")
        if hasattr(value, "__annotations__") and hasattr(value, "__total__"):
            lines += [f"    {key}: {kind}" for key, kind in sorted(value.__annotations__.items())]
        return lines
    if inspect.isfunction(value):
        return [f"{name}{inspect.signature(value)}"]
    return [f"{name} = {value}"]


def api() -> str:
    import holdfast
    from holdfast import web

    lines: list[str] = []
    for name in holdfast.__all__:
        lines += describe(name, getattr(holdfast, name))
    for name in web.__all__:
        lines += describe(f"web.{name}", getattr(web, name))
    return "\n".join(re.sub(r" at 0x[0-9a-f]+", "", line) for line in lines) + "\n"


def main() -> int:
    check = "--check" in sys.argv
    stale = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        fresh = refreshed(text)
        if fresh != text:
            stale.append(path.name)
            if not check:
                path.write_text(fresh, encoding="utf-8")
    target = ROOT / "docs" / "api.txt"
    if not target.exists() or target.read_text(encoding="utf-8") != api():
        stale.append("docs/api.txt")
        if not check:
            target.write_text(api(), encoding="utf-8")
    if stale:
        print(("out of date, run make docs: " if check else "rewritten: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
