"""One mutant, its test and the verdict, in a place that is used for one after the other."""

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from scripts.mutation.entries import Mutant
from scripts.mutation.nest import Nest, Reply, Request
from scripts.mutation.servers import Seed, Server, database, folder_of
from scripts.mutation.trees import Tree, first_changed

LONGEST = 60.0  # seconds that a test may take with its guard removed, on a quiet machine
SHORTEST = 15.0
UNCHANGED = 5  # times as patient with a test that must pass
# A mutant of these decides how a server or a database is made: nothing may have been made before.
MAKERS = ("src/holdfast/db/embedded/", "src/holdfast/db/migrate/", "src/holdfast/testing/")
NOT_SQL = re.compile(
    r"psycopg\.errors\.(SyntaxError|Undefined\w+|Indeterminate\w+|Ambiguous\w+)|MigrationFailed.*"
)
RAN_OUT = re.compile(r"Timeout|timed out|not within|timeout expired")  # of time, and a slow machine does too


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    word: str  # caught | SURVIVED | BROKEN
    seconds: float
    detail: str = ""
    cpu: float = 0.0
    doubtful: bool = False  # it may be the machine's doing


@dataclass
class Unchanged:
    """How the tests went without any change."""

    seconds: dict[str, float] = field(default_factory=dict)  # of those that passed
    failed: dict[str, str] = field(default_factory=dict)  # why


class Bench:
    """A tree, a server and a process that runs tests: for one mutant at a time."""

    def __init__(self, pristine: Path, folder: Path, seed: Seed) -> None:
        self._folder = folder
        self._pristine = pristine
        self._seed = seed
        self._tree = Tree(pristine, folder / "w")
        self._temporary = folder / "t"
        self._base = folder / "b"
        self._temporary.mkdir()
        for open_to_all in (folder, self._temporary):
            open_to_all.chmod(0o777)  # the server may run as another user
        self._server = Server(seed, self._temporary / folder_of(self._base))
        self._nest = Nest()
        self._loaded = Nest(str(self._tree.path), self._environment())  # for what changes no Python

    @property
    def copies(self) -> int:
        return self._server.copies

    def close(self) -> None:
        self._nest.close()
        self._loaded.close()
        self._server.close()

    def unchanged(self, tests: Iterable[str]) -> Unchanged:
        """A test that fails anyway catches nothing. One that fails beside others is tried once more, alone."""
        found = Unchanged()
        failed = self._try_unchanged(list(dict.fromkeys(tests)), found)
        for test in failed:
            for _ in self._try_unchanged([test], found):
                found.failed[test] = _reason(self._said())
        return found

    def _try_unchanged(self, tests: list[str], found: Unchanged) -> list[str]:
        """Returns those that did not pass."""
        record = self._folder / "record"
        record.unlink(missing_ok=True)
        limit = LONGEST * UNCHANGED
        words = [f"--timeout={limit:g}", *tests]
        self._run(words, UNCHANGED, limit * (1 + len(tests)), record=str(record), writes=True)
        went = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
        failed = []
        for test in tests:
            own = [went[name] for name in went if name == test or name.startswith((f"{test}[", f"{test}::"))]
            if own and all(outcome == "passed" for outcome, _ in own):
                found.seconds[test] = sum(seconds for _, seconds in own)
            else:
                failed.append(test)
        return failed

    def judge(self, mutant: Mutant, usual: float, *, alone: bool = False) -> Verdict:
        """`usual`: seconds that its tests took unchanged. Alone it is given all the time it wants, and a new interpreter."""
        fresh = alone or mutant.file.startswith(MAKERS)
        limit = LONGEST if fresh else min(LONGEST, max(SHORTEST, 10 + 4 * usual))
        changed = first_changed(self._pristine, mutant)
        if mutant.file.startswith("src/holdfast/db/"):
            changed = 0
        try:
            if problem := self._tree.apply(mutant):
                return Verdict(mutant, "BROKEN", 0.0, problem)
            loaded = not mutant.file.endswith(".py")
            reply = self._run_tests(mutant, limit, changed, fresh=fresh, loaded=loaded)
            said = self._said()
        finally:
            self._tree.restore()
        verdict = decide(mutant, reply, said)
        if verdict.word == "caught" and RAN_OUT.search(verdict.detail) and not alone:
            verdict = self._check_limit(verdict, limit, fresh=fresh)
        return verdict

    def _check_limit(self, verdict: Verdict, limit: float, *, fresh: bool) -> Verdict:
        """What ran out of time would have done so on a slow machine, too: the guard put back, it must not."""
        reply = self._run_tests(verdict.mutant, limit, None, fresh=fresh)
        if reply.code == 0:
            return verdict
        detail = f"ran out of time, and does with its guard, too: {_reason(self._said())}"
        return Verdict(verdict.mutant, "BROKEN", verdict.seconds, detail, verdict.cpu, doubtful=True)

    def _run_tests(
        self, mutant: Mutant, limit: float, changed: int | None, *, fresh: bool, loaded: bool = True
    ) -> Reply:
        words = ["-x", f"--timeout={limit:g}", *mutant.tests]
        hard = (10 if fresh else 2) * limit * len(mutant.tests) + 60  # for what is put away behind a test
        return self._run(words, 1, hard, changed=changed, fresh=fresh, loaded=loaded)

    def _run(
        self,
        words: list[str],
        patience: int,
        limit: float,
        *,
        changed: int | None = None,
        fresh: bool = False,
        record: str = "",
        writes: bool = False,
        loaded: bool = True,
    ) -> Reply:
        self._tidy()
        self._server.fit()
        base = self._folder / "own" if fresh else self._base
        env = {**self._environment(), "HOLDFAST_TEST_PATIENCE": str(patience)}
        if not writes:
            env["PYTHONDONTWRITEBYTECODE"] = "1"
        request = Request(
            tree=str(self._tree.path),
            words=["-q", "-p", "no:randomly", f"--basetemp={base}", *words],
            env=env,
            out=str(self._folder / "said"),
            limit=limit,
            record=record,
            start="" if fresh else database(self._seed.complete if changed is None else changed),
            server=str(self._temporary / folder_of(self._base)),
            migrates=changed is not None,
            writes=writes,
            fresh=fresh,
        )
        # What writes bytecode loads all that it needs: the next ones find it.
        return (self._loaded if loaded and not fresh and not writes else self._nest).run(request)

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PYTHON"))}
        return kept | {"PYTHONPATH": f"{self._tree.path}/src", "TMPDIR": str(self._temporary)}

    def _said(self) -> str:
        said = (self._folder / name for name in ("said", "said.error"))
        return next((text for path in said if (text := path.read_text(errors="replace").strip())), "")

    def _tidy(self) -> None:
        for folder in (self._base, self._folder / "own"):
            shutil.rmtree(folder, ignore_errors=True)
        for path in self._temporary.iterdir():
            if path.name != folder_of(self._base):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def decide(mutant: Mutant, reply: Reply, said: str) -> Verdict:
    tail = "".join(said.strip().splitlines()[-1:])

    def verdict(word: str, detail: str = "") -> Verdict:
        return Verdict(mutant, word, reply.seconds, detail, reply.cpu)

    if reply.late:
        return replace(verdict("BROKEN", f"it did not end: {tail}"), doubtful=True)
    # A text that is no SQL would fail whatever is tested. A mutant in Python may well run into somebody's table.
    if mutant.file.endswith(".sql") and (error := NOT_SQL.search(said)):
        return verdict("BROKEN", error[0])
    # What got out may end the tests themselves, or be too deep for their report.
    signs = ("KeyboardInterrupt", "INTERNALERROR")
    ended = reply.code in (2, 3) and any(sign in said for sign in signs)
    if ended or (reply.code == 1 and " failed" in tail):
        return verdict("caught", _reason(said))
    if reply.code == 0:
        return verdict("SURVIVED", tail)
    return replace(verdict("BROKEN", tail), doubtful=bool(RAN_OUT.search(_reason(said))))


def _reason(said: str) -> str:
    """What the test says, and which one it is."""
    lines = said.strip().splitlines()
    errors = [line[1:].strip() for line in lines if line.startswith("E  ")]
    names = [line for line in lines if line.startswith(("FAILED ", "ERROR "))] or lines[-1:]
    return " | ".join([*errors[:1], *(line for line in errors[1:] if RAN_OUT.search(line)), *names[:1]])[:400]
