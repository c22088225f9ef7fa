"""Every pair of versions that meet, with a verdict: does new code read old events, and old code new ones?"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ..store.contracts import Contract
from .algebra import Answer, covers
from .catalog import Declared, Versions, changed_text, is_same
from .explain import Reason, reasons


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two versions of an event type are compatible. `old` and `new` are equal if a version was changed."""

    type: str
    old: int
    new: int
    backward: Answer  # code of the new version accepts all that code of the old one wrote
    forward: Answer  # code of the old version accepts all that code of the new one writes
    changes: list[str] = field(default_factory=list)  # what is wrong, for which version, and what to do
    compatible: bool = True  # as far as the new version requires it
    upcast: bool = False  # events of the old version are upcast

    def __str__(self) -> str:
        word = "compatible" if self.compatible else "incompatible"
        pair = f"version {self.old}" if self.old == self.new else f"version {self.old} -> {self.new}"
        how = f"backward {self.backward}{' by upcast' if self.upcast else ''}, forward {self.forward}"
        return "\n".join([f"{self.type} {pair}: {word} ({how})", *(f"  {change}" for change in self.changes)])


def verdicts(code: Mapping[tuple[str, int], Declared], stored: Versions, where: str) -> list[Verdict]:
    """Every declared version against its stored form, and against every older one, declared or stored."""
    found = [v for item in code.values() if (v := _itself(item.contract, stored, where)) is not None]
    known: Versions = {**{place: item.contract for place, item in code.items()}, **stored}
    for (name, new), item in code.items():
        for (other, old), before in sorted(known.items()):
            if other == name and old < new:
                found.append(_pair(item, before, code))
    return sorted(found, key=lambda v: (v.type, v.new, v.old))


def _itself(own: Contract, stored: Versions, where: str) -> Verdict | None:
    there = stored.get((own.name, own.version))
    if there is None or is_same(there, own):
        return None
    backward, forward = covers(own.reader, there.writer), covers(there.reader, own.writer)
    was, now = f"stored version {own.version}", f"declared version {own.version}"
    differences = [
        *_told(reasons(there.writer, own.reader), was, now),
        *_told(reasons(own.writer, there.reader), now, was),
    ]
    changes = [changed_text(own.name, own.version, where) + ".", *differences]
    return Verdict(own.name, own.version, own.version, backward, forward, changes, compatible=False)


def _told(found: list[Reason], writer: str, reader: str) -> list[str]:
    return [f"{r.path or 'the data'}: {r.said(writer, reader)}." for r in found]


def _pair(item: Declared, before: Contract, code: Mapping[tuple[str, int], Declared]) -> Verdict:
    own, old, new = item.contract, before.version, item.contract.version
    kind, steps = item.kind.reader_of(old)
    reader = own if not steps else code[kind.name, kind.version].contract
    backward: Answer = "yes" if steps and kind.version == old else covers(reader.reader, before.writer)
    forward = covers(before.reader, own.writer)
    changes: list[str] = []
    if own.compatibility in ("backward", "full") and backward != "yes":
        changes += _backward(before, reader, backward)
    if own.compatibility in ("forward", "full") and forward != "yes":
        changes += _forward(before, own, forward)
    return Verdict(own.name, old, new, backward, forward, changes, not changes, upcast=bool(steps))


def _backward(old: Contract, new: Contract, answer: Answer) -> Iterator[str]:
    either = f"or declare version {old.version} and @upcast it to version {old.version + 1}"
    yield from _explained(old, new, answer, lambda r: f"{r.fix}, {either}.", f"Make it plainer, {either}.")


def _forward(old: Contract, new: Contract, answer: Answer) -> Iterator[str]:
    either = (
        f'or declare version {new.version} with compatibility="backward" and replace all code of version '
        f"{old.version} before anybody publishes version {new.version}"
    )
    yield from _explained(new, old, answer, lambda r: f"{r.keep}, {either}.", f"Make it plainer, {either}.")


def _explained(
    writer: Contract, reader: Contract, answer: Answer, advice: Callable[[Reason], str], otherwise: str
) -> Iterator[str]:
    w, r = f"version {writer.version}", f"version {reader.version}"
    found = reasons(writer.writer, reader.reader)
    for reason in found:
        yield f"{reason.path or 'the data'}: {reason.said(w, r)}. {advice(reason)}"
    if answer == "unknown":
        beside = "" if found else "no difference was found that matters, but "
        yield (
            f"the data: {beside}it cannot be proved that {r} code takes all that {w} events may have. That counts as no. "
            f"Types that contain themselves and patterns that differ are such cases. {otherwise}"
        )
    elif not found:
        yield f"the data: {r} code does not take all that {w} events may have, and where cannot be said. {otherwise}"
