"""What needs attention, as the overview shows it: read from its page."""

import html
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Button:
    label: str
    path: str
    form: dict[str, str] | None  # None: a link to a preview


@dataclass(frozen=True)
class Entry:
    """What needs attention: a sentence, what is known, the commands to copy and the buttons."""

    sentence: str
    text: str
    commands: list[str]
    buttons: list[Button]


def entries(page: str) -> list[Entry]:
    return [_entry(part) for part in re.findall(r'<li class="find-row">(.*?)</li>', page, re.DOTALL)]


def _entry(part: str) -> Entry:
    acts = part[part.rindex('<div class="acts">') :]
    found = re.findall(r"<b>(.*?)</b>", part)
    links = [
        Button(html.unescape(label).rstrip("…"), html.unescape(path), None)
        for path, label in re.findall(r'<a class="[^"]*" data-dialog href="([^"]+)">([^<]+)</a>', acts)
    ]
    forms = [
        Button(
            html.unescape(label),
            path,
            {
                name: html.unescape(value)
                for name, value in re.findall(r'name="([^"]+)" value="([^"]*)"', inner)
            },
        )
        for path, inner, label in re.findall(
            r'<form method="post" action="([^"]+)"[^>]*>(.*?)<button[^>]*>([^<]+)</button>', acts, re.DOTALL
        )
    ]
    text = html.unescape(re.sub(r"<[^>]+>", " ", part))
    return Entry(html.unescape(found[0]), text, _commands(part), [*links, *forms])


def _commands(part: str) -> list[str]:
    return [html.unescape(one) for one in re.findall(r"<code>(.*?)</code>", part)]
