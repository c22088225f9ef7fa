"""Checks of prose: phrases that read as translated, long lines of docs, and the last commits. Run by `make check`.

Where a phrase is found, the right-hand side of its row in PHRASES says what to write instead. docs/words.md has the words.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 120
COMMITS = 20
SUBJECT = 72
SINCE = "2026-11-17T01:00:00+00:00"  # commits before it were made without this check

PHRASES = {
    r"; answers\b|\banswers (?:one row|one number|a handle|as |its |those|how|what |which|where|whom|their|only)": "returns",
    r"\b(?:is|are|be|was|were|been|being) told\b(?! apart| from)": "reported, woken, signalled: say what happens",
    r"\bsince long\b": "for more than a day, since the start",
    r"\blook(?:s|ed)? after\b": "owns",
    r"\bso many\b(?! that)": "at most N, that many",
    r"\b[Mm]end(?:s|ed|ing)?\b": "fix",
    r"\b(?:[Ww]ho sleeps|[Tt]hose who sleep)\b": "sleeping workers",
    r"\bWho comes next\b": "the next worker to join",
    r"database's count\b": "the database's values apply",
    r"\blook from the start\b": "full scan",
    r"\bon wish\b": "on request, optionally",
    r"\btakes? along\b": "includes",
    r"\bdearer\b": "more expensive",
    r"\bmakes? good a\b": "catches up",
    r"(?<!overview, )\b(?:[Ii]ts|[Ee]ach|[Ee]very|[Oo]ne|[Aa]) looks?\b(?! like|-up)": "read, query, poll or check",
    r"\bgo(?:es)? on\b(?! writing)": "continue",
    r"\bwent on\b": "continued",
    r"\banew\b": "again, new, from scratch",
    r"\ball the same\b": "anyway, but",
    r"\b(?:is|are|was|were) away\b": "unreachable",
    r"\b[Ll]iving workers?\b": "live",
    r"\bunder way\b": "in progress, running",
    r"\bhands in the tables\b": "manual changes to the tables",
    r"\b(?:worth|say|says) a word\b": "report",
    r"\b(?:lie|lies|lay) down\b": "sleep",
    r"\bstood still\b": "did nothing, stopped",
    r"\bWho (?:joins|leaves|claims|looks|else)\b": "a worker that ...",
    r"\bin (?:its|their) way\b": "what blocks it",
    r"\bparted from\b": "diverged from, differs from",
    r"\bwhat there is\b": "name it",
    r"\bpassed and noted\b": "recorded and skipped",
    r"\bnow and then\b": "regularly, sometimes",
    r"\b[Ww]hoever\b": "the worker (session, caller, user) that ...",
    r"\bsuch an? one\b": "name it",
    r"\bmade good\b": "made up for",
    r"\blooked (?:at|through|over) again\b": "read again, checked again",
}
# For the pages that users read: elsewhere they are names, or Holdfast's own things beside the user's.
PAGE_PHRASES = {
    r"\bof (?:yours|ours)\b": "your, Holdfast's",
    r"\bbur(?:y|ied|ies)\b": "becomes a dead letter",
}
NOT_PAGES = ("docs/adr/", "docs/claims.md", "docs/performance")
# A migration that was released is never edited; the others quote what they forbid, or hold no prose of ours.
LEFT_OUT = ("src/holdfast/sql/migrations/", "docs/words.md", "docs/api.txt")


BULLET = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
WORD = re.compile(r"(?:`+[^`]*`+|[^\s`]|`)+")  # what is between backquotes stays on one line
OPENS = re.compile(r"[-+*>]|#+|\d+[.)]")


def files() -> list[Path]:
    found = [p for p in (ROOT / "src").rglob("*") if p.suffix in (".py", ".sql")]
    found += [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(p for p in found if not name(p).startswith(LEFT_OUT))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def phrases(where: str, text: str) -> Iterator[str]:
    page = where.endswith(".md") and not where.startswith(NOT_PAGES)
    applies = {**PHRASES, **(PAGE_PHRASES if page else {})}
    if where.endswith(".sql"):
        text = without_bodies(text)
    for pattern, better in applies.items():
        for found in re.finditer(pattern, text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{where}:{line}: {found[0]!r}: write: {better}"


def without_bodies(sql: str) -> str:
    """The same lines without the bodies of functions, which a database has: they change in a migration only."""
    return re.sub(r"(\$\w*\$).*?\1", lambda body: "\n" * body[0].count("\n"), sql, flags=re.DOTALL)


def prose(text: str) -> Iterator[tuple[int, str, bool]]:
    """(number, line, whether it may be wrapped). Tables, headings, code and what a program wrote are as long as they are."""
    fenced = written = False
    for number, line in enumerate(text.split("\n"), 1):
        start = line.lstrip()
        if start.startswith("```"):
            fenced = not fenced
        elif start.startswith(("<!-- figures", "<!-- output")):
            written = True
        elif start.startswith("<!-- end"):
            written = False
        special = not start or start.startswith(("|", "<", "#", "```", "---", ">"))
        yield number, line, not (fenced or written or special)


def long_lines(where: str, text: str) -> Iterator[str]:
    for number, line, wraps in prose(text):
        if wraps and len(line) > WIDTH and len(WORD.findall(line)) > 1:
            yield f"{where}:{number}: {len(line)} characters, {WIDTH} at most. Run: python scripts/prose.py --wrap"


def wrapped(text: str) -> str:
    """The same with the paragraphs wrapped that have a long line."""
    done: list[str] = []
    paragraph: list[str] = []

    def flush() -> None:
        done.extend(wrap(paragraph) if any(len(line) > WIDTH for line in paragraph) else paragraph)
        paragraph.clear()

    for _, line, wraps in prose(text):
        if not wraps or BULLET.match(line):
            flush()
        if wraps:
            paragraph.append(line)
        else:
            done.append(line)
    flush()
    return "\n".join(done)


def wrap(paragraph: list[str]) -> list[str]:
    bullet = BULLET.match(paragraph[0])
    first = bullet[0] if bullet else " " * (len(paragraph[0]) - len(paragraph[0].lstrip()))
    words = WORD.findall(" ".join([paragraph[0][len(first) :], *paragraph[1:]]))
    lines = [first + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= WIDTH:
            lines[-1] += f" {word}"
        elif OPENS.fullmatch(
            word
        ):  # it would open a list or a heading there, so the word before it goes along
            lines[-1], _, before = lines[-1].rpartition(" ")
            lines.append(f"{' ' * len(first)}{before} {word}")
        else:
            lines.append(" " * len(first) + word)
    return lines


def commits(log: str) -> Iterator[str]:
    """`log` has a commit per NUL: its hash, subject and body, each on lines of their own."""
    for entry in filter(None, (part.strip("\n") for part in log.split("\0"))):
        number, subject, *body = entry.split("\n")
        if len(subject) > SUBJECT:
            yield f"commit {number}: its subject has {len(subject)} characters, {SUBJECT} at most: {subject}"
        if not any(line.strip() for line in body):
            yield f"commit {number}: has no body that says what was before and what is now: {subject}"


def read_log() -> str:
    """The last commits that are here: few in a shallow clone, none where there is no git."""
    command = ["git", "log", f"-{COMMITS}", f"--since={SINCE}", "--no-merges", "--format=%h%n%s%n%b%x00"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def main() -> int:
    if sys.argv[1:] == ["--wrap"]:
        for path in files():
            if path.suffix == ".md":
                path.write_text(wrapped(path.read_text(encoding="utf-8")), encoding="utf-8")
    wrong: list[str] = []
    for path in files():
        text = path.read_text(encoding="utf-8")
        wrong += phrases(name(path), text)
        if path.suffix == ".md":
            wrong += long_lines(name(path), text)
    wrong += commits(read_log())
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
