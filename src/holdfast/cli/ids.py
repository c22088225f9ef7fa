"""Ids as a person types them: whole, or a beginning that fits one id alone."""

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import typer

from holdfast.operate.operator import Operator
from holdfast.store import chains, operations, show
from holdfast.store.statement import Statement

LEAST = 4  # digits of a beginning
_HEX = re.compile(r"[0-9a-fA-F-]+")
Between = Callable[
    [UUID, UUID, int], Statement[list[UUID]]
]  # some ids in a range: the lowest, the highest, how many


class IdStart(str):
    """The beginning of an id. The command finds the whole one before it runs."""

    __slots__ = ("between", "kind")
    kind: str
    between: Between


def id_parser(kind: str, between: Between) -> Callable[[str], UUID | IdStart]:
    """What reads a whole id of this kind, or the beginning of one."""
    article = "an" if kind[0] in "aeiou" else "a"

    def parse(text: str) -> UUID | IdStart:
        digits = text.replace("-", "")
        if _HEX.fullmatch(text) and len(digits) == 32:
            return UUID(text)
        if _HEX.fullmatch(text) and LEAST <= len(digits) < 32:
            start = IdStart(text)
            start.kind, start.between = kind, between
            return start
        raise typer.BadParameter(
            f"{text!r} is no id of {article} {kind}, nor the beginning of one: {LEAST} hexadecimal digits or more"
        )

    return parse


parse_job_id = id_parser("job", show.ids_between)
parse_group_id = id_parser("group", chains.group_ids_between)
parse_operation_id = id_parser("operation", operations.operation_ids_between)


def whole_ids(operator: Operator, value: Any) -> Any:
    """The value with every beginning of an id made whole; what is no id stays as it is."""
    if isinstance(value, list):
        return [whole_ids(operator, item) for item in value]
    if not isinstance(value, IdStart):
        return value
    return operator.id_by_start(str(value), value.kind, value.between)
