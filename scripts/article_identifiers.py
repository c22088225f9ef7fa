"""Print every identifier of the code in articles: names and values of their SQL, and names in camel case of the rest.
With --statements, how each statement of their SQL begins.

`python scripts/article_identifiers.py ARTICLE.txt ... > tests/articles/identifiers.txt`, and the same with --statements for
statements.txt, made the lists that docs/from-the-articles.md is checked against: from the five articles "Durable Work in
Postgres" (parts 0, 1, 2, 5 and 8) as plain text. Names are facts and are kept here; the articles' sentences are not.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

BEGINS = re.compile(r"^\s*(?:CREATE|INSERT INTO|UPDATE|ALTER TABLE|WITH|SELECT|DELETE FROM)\b", re.MULTILINE)
QUOTED = re.compile(r"query\(\s*[`\"](.*?)[`\"]", re.DOTALL)  # SQL inside another language
BODY = re.compile(r"\$\$(.*?)\$\$", re.DOTALL)
COMMENT = re.compile(r"--[^\n]*")
LITERAL = re.compile(r"'([^']*)'")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VALUE = re.compile(r"[a-z]+(?:_[a-z]+)*")  # a status or a channel, and neither data nor a duration
SNAKE = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
METHOD = re.compile(r"\bdb\.(\w+)\(")
JSON_KEY = re.compile(r'"([a-z_]+)":')
CAMEL = re.compile(
    r"\b(?:[a-z]+(?:[A-Z][a-z]+)+(?=\()|[A-Z][a-z]+(?:[A-Z][a-z]+)+(?=\()|[A-Z]+(?:_[A-Z]+)+\b)"
)
KEYWORDS = re.compile(
    "add|after|alter|and|any|as|begin|bigint|by|case|check|coalesce|column|commit|conflict|count|create|default|delete|desc|do"
    "|each|end|enum|excluded|execute|exists|for|from|function|group|if|in|index|insert|int|interval|into|is|jsonb|key|language"
    "|least|limit|locked|max|min|new|not|now|null|of|on|or|order|perform|plpgsql|power|primary|references|replace|return"
    "|returning|returns|rollback|row|select|self|set|skip|table|text|then|timestamptz|trigger|type|unique|update|uuid|values"
    "|when|where|with"
)
HEAD = re.compile(
    r"(?:CREATE (?!INDEX|UNIQUE)(?:OR REPLACE )?\w+|ALTER TABLE|INSERT INTO|DELETE FROM|WITH) \w+"
    r"|UPDATE \w+ (?:\w )?SET \w+(?: = '\w+')?"
    r"|SELECT [^,]*?(?= AS |,| FROM )"
)
FROM = re.compile(r" FROM \w+")
ELSEWHERE = {"setTimeout", "setInterval", "clearInterval", "query"}  # of another language's library


def statements(text: str) -> Iterator[str]:
    """Each SQL statement: from a line that begins like one to its semicolon, or to the end of the string that it is in."""
    for begin in BEGINS.finditer(text):
        rest = text[begin.start() :]
        masked = BODY.sub(lambda m: "x" * len(m[0]), COMMENT.sub(lambda m: " " * len(m[0]), rest))
        end = masked.find(";")
        blank = masked.find("\n\n")
        if end >= 0 and (blank < 0 or end < blank or "(" in masked[:blank]):
            yield COMMENT.sub("", rest[: end + 1])
    yield from QUOTED.findall(text)


def names_of(statement: str) -> Iterator[str]:
    for value in LITERAL.findall(statement):
        if VALUE.fullmatch(value):
            yield value
        yield from JSON_KEY.findall(value)
    for name in NAME.findall(LITERAL.sub("", statement)):
        if not KEYWORDS.fullmatch(name.lower()) and len(name) > 1 and not name.isupper():
            yield name


def heads(texts: Iterable[str]) -> list[str]:
    """How each statement begins, in their order: what it does, to which table, and the status that it sets. An index is
    known by its name."""
    found: dict[str, None] = {}
    for statement in (" ".join(s.split()) for text in texts for s in statements(text)):
        begin = HEAD.match(statement)
        if begin is not None:
            table = FROM.search(statement) if begin[0].startswith("SELECT") else None
            found[begin[0].replace(" i SET", " SET") + (table[0] if table else "")] = None
    return list(found)


def identifiers(texts: Iterable[str]) -> list[str]:
    found: set[str] = set()
    for text in texts:
        for statement in statements(text):
            found.update(names_of(statement))
        found.update(SNAKE.findall(text))
        found.update(CAMEL.findall(text))
        found.update(METHOD.findall(text))
    return sorted(
        (name for name in found - ELSEWHERE if not glued(name, found)), key=lambda name: (name.lower(), name)
    )


def glued(name: str, found: set[str]) -> bool:
    """A heading of a table ran into the name behind it when the page became text."""
    return any(
        "_" in other and len(other) < len(name) and name.endswith(other) and name[-len(other) - 1].isalpha()
        for other in found
    )


def main() -> int:
    names = [word for word in sys.argv[1:] if word != "--statements"]
    if not names:
        sys.exit("say which files: python scripts/article_identifiers.py ARTICLE.txt ...")
    read = heads if "--statements" in sys.argv else identifiers
    print("\n".join(read(Path(name).read_text(encoding="utf-8") for name in names)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
