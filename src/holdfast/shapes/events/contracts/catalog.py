"""The sources of contracts: classes of this process, and contracts.json. Those of the database are in the store."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ....errors import ConfigurationError, ContractChanged, TaskDefinitionError
from .. import contract
from ..contract import EventType
from ..store.contracts import Contract
from .algebra import covers
from .schemas import Schemas, schemas_of

FILE = "contracts.json"
_FORMAT = 1
Versions = dict[tuple[str, int], Contract]


class Declared(NamedTuple):
    kind: EventType
    contract: Contract


def contract_of(kind: EventType) -> Contract:
    found = schemas_of(kind)
    return Contract(kind.name, kind.version, found.reader, found.writer, found.digest, kind.compatibility)


def declared() -> dict[tuple[str, int], Declared]:
    """Every event class of this process, by name and version. Two classes of one version must be the same."""
    found: dict[tuple[str, int], Declared] = {}
    for place, kinds in sorted(contract.DECLARED.items()):
        made = [Declared(kind, contract_of(kind)) for kind in kinds]
        for other in made[1:]:
            if other.contract.digest != made[0].contract.digest:
                first, second = (
                    f"{d.kind.cls.__module__}.{d.kind.cls.__qualname__}" for d in (made[0], other)
                )
                raise TaskDefinitionError(
                    f"event {place[0]!r} version {place[1]} is declared twice, and differently: {first} and {second}. "
                    "Keep one, or give one another version"
                )
        if made:
            found[place] = made[-1]
    return found


def by_version(contracts: Iterable[Contract]) -> Versions:
    return {(c.name, c.version): c for c in contracts}


def is_same(a: Contract, b: Contract) -> bool:
    """Whether both accept and write the same. Equal digests show it; different ones may come from another pydantic."""
    if a.digest == b.digest:
        return True
    pairs = ((a.reader, b.reader), (a.writer, b.writer))
    return all(covers(x, y) == "yes" and covers(y, x) == "yes" for x, y in pairs)


def changed_text(name: str, version: int, where: str) -> str:
    """What to do when a version was changed."""
    return (
        f"event {name!r} version {version} is not as {where} has it, and a version never changes: events of it may be in "
        f"the log. Put the class back as it was, and declare the change as @event({name!r}, version={version + 1})"
    )


def new_ones(
    known: Mapping[tuple[str, int], Contract], code: Iterable[Declared], where: str
) -> list[Contract]:
    """The unknown ones; ContractChanged when a known one differs."""
    fresh = []
    for item in code:
        there = known.get((item.contract.name, item.contract.version))
        if there is None:
            fresh.append(item.contract)
        elif not is_same(there, item.contract):
            raise ContractChanged(changed_text(there.name, there.version, where))
    return fresh


# contracts.json ----------------------------------------------------------------------------------------------------------


def read_file(path: str | os.PathLike[str]) -> list[Contract]:
    """The contracts of a file; ConfigurationError when it has none that can be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"there is no {path}. Write it: holdfast contracts export {path}") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    try:
        whole = json.loads(text)
        if whole["holdfast_contracts"] != _FORMAT:
            raise ConfigurationError(
                f"{path} is of format {whole['holdfast_contracts']!r}, and this release reads {_FORMAT}: upgrade holdfast"
            )
        return [
            _read(name, int(version), found)
            for name, versions in whole["events"].items()
            for version, found in versions.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} has no contracts that can be read ({type(error).__name__}: {error}). Put back the version before, "
            "or remove it and write it again: holdfast contracts export"
        ) from None


def _read(name: str, version: int, found: Mapping[str, Any]) -> Contract:
    schemas = Schemas(dict(found["reader"]), dict(found["writer"]))
    return Contract(
        name, version, schemas.reader, schemas.writer, schemas.digest, str(found["compatibility"])
    )


def file_text(contracts: Sequence[Contract]) -> str:
    """The file: made to be committed, and to be compared line by line."""
    events: dict[str, dict[str, Any]] = {}
    for c in sorted(contracts, key=lambda c: (c.name, c.version)):
        one = {"compatibility": c.compatibility, "reader": c.reader, "writer": c.writer}
        events.setdefault(c.name, {})[str(c.version)] = one
    return json.dumps({"holdfast_contracts": _FORMAT, "events": events}, indent=1, ensure_ascii=False) + "\n"


def export(path: str | os.PathLike[str]) -> list[Contract]:
    """Add the missing ones to the file; existing ones stay. Returns the new ones."""
    there = by_version(read_file(path)) if Path(path).exists() else {}
    fresh = new_ones(there, declared().values(), str(path))
    text = file_text([*there.values(), *fresh])
    if fresh or not there:
        _write(Path(path), text)
    return fresh


def _write(path: Path, text: str) -> None:
    """Either all of it, or nothing."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ConfigurationError(f"{path} cannot be written: {error}") from None
