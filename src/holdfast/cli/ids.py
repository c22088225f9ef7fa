"""Ids of jobs as a person types them: whole, or a beginning that fits one job alone."""

import re
from typing import Any
from uuid import UUID

import typer

from holdfast.operate.operator import Operator

LEAST = 4  # digits of a beginning
_HEX = re.compile(r"[0-9a-fA-F-]+")


class IdStart(str):
    """The beginning of an id. The command finds the whole one before it runs."""

    __slots__ = ()


def parse_job_id(text: str) -> UUID | IdStart:
    """A whole id, or the beginning of one."""
    digits = text.replace("-", "")
    if _HEX.fullmatch(text) and len(digits) == 32:
        return UUID(text)
    if _HEX.fullmatch(text) and LEAST <= len(digits) < 32:
        return IdStart(text)
    raise typer.BadParameter(
        f"{text!r} is no id of a job, nor the beginning of one: {LEAST} hexadecimal digits or more"
    )


def whole_ids(operator: Operator, value: Any) -> Any:
    """The value with every beginning of an id made whole; what is no id stays as it is."""
    if isinstance(value, list):
        return [whole_ids(operator, item) for item in value]
    return operator.job_id_by_start(str(value)) if isinstance(value, IdStart) else value
