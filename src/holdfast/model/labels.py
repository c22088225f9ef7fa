"""Labels of a worker: `zone=a,team=mail`."""

import re

from ..errors import ConfigurationError

MOST_LABELS = 20
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,62}")
_LONGEST = 200  # characters of a value


def parse_labels(text: str) -> dict[str, str]:
    """The labels by name; an invalid text is refused, with its invalid part."""
    found: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, mark, value = (side.strip() for side in part.partition("="))
        if not mark or not _NAME.fullmatch(name) or not value.isprintable() or len(value) > _LONGEST:
            raise ConfigurationError(
                f"labels: {part!r} is no label. Write name=value, several with commas between: zone=a,team=mail"
            )
        found[name] = value
    if len(found) > MOST_LABELS:
        raise ConfigurationError(f"labels: {len(found)} are more than the limit of {MOST_LABELS}")
    return found
