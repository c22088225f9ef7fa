"""What may be stored, and what a refusal says."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidPayload
from holdfast.tasks.payload import METADATA_BYTES, RESULT_BYTES, deeper_than, dump, shown


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


texts = st.text(st.characters(exclude_characters="\x00", codec="utf-8"))
floats = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0)  # -0.0 is refused
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@given(st.dictionaries(texts, values))
def test_json_survives_the_round_trip(payload: dict[str, Any]) -> None:
    assert json.loads(dump(payload)) == payload


def test_text_is_compact_and_not_escaped() -> None:
    assert dump({"a": [1, "é", "😀"], "b": None}) == '{"a":[1,"é","😀"],"b":null}'


def test_tuples_become_lists() -> None:
    assert dump({"a": (1, (2,))}) == '{"a":[1,[2]]}'


def test_a_large_float_keeps_its_point_wherever_it_stands() -> None:
    plain = "10000000000000000.0"
    for value, text in (
        (1e16, plain),
        ([1e16], f"[{plain}]"),
        ([1, -1e16], f"[1,-{plain}]"),
        ({"a": 1e16}, f'{{"a":{plain}}}'),
        ([[{"a": [1.5e-7, 1e16]}]], f'[[{{"a":[1.5e-07,{plain}]}}]]'),
        ({"a": "[1e+16]", "b": [1e16]}, f'{{"a":"[1e+16]","b":[{plain}]}}'),
    ):
        assert dump(value) == text


def test_an_id_that_looks_like_a_number_is_text() -> None:
    value = {"id": "01a1e913-8d3e-4b5c-93e5-cfbca1a1f222", "url": "http://127.0.0.1:3e-5,1e+16"}
    assert json.loads(dump(value)) == value


def test_big_integers_stay_exact() -> None:
    number = 10**999 + 7
    assert json.loads(dump({"n": number})) == {"n": number}


def test_an_escaped_backslash_is_no_nul() -> None:
    assert json.loads(dump({"a": "\\u0000"})) == {"a": "\\u0000"}


def test_many_digits_in_a_string_are_text() -> None:
    assert json.loads(dump({"a": "1" * 2000})) == {"a": "1" * 2000}


def test_many_flat_containers_are_not_deep() -> None:
    assert dump({"a": [[]] * 2000}).count("[") == 2001


LOOP: dict[str, Any] = {"a": [1]}
LOOP["a"].append(LOOP)
NOT_JSON = "Annotate it with its type so that it can be converted, or pass a JSON value"
REFUSED: list[tuple[Any, str]] = [
    (
        {"note": "a\x00b"},
        (
            "payload value note contains a NUL character (str 'a\\x00b'), which PostgreSQL cannot store. "
            "Remove it, or send base64"
        ),
    ),
    (
        {"rows": [{"x": 1}, {"x": "\x00"}]},
        (
            "payload value rows[1].x contains a NUL character (str '\\x00'), which PostgreSQL cannot store. "
            "Remove it, or send base64"
        ),
    ),
    (
        {"a\x00": 1},
        (
            "a key of the payload contains a NUL character (str 'a\\x00'), which PostgreSQL cannot store. "
            "Remove it, or send base64"
        ),
    ),
    (
        {"note": "\ud800x"},
        (
            "payload value note contains a lone surrogate (str '\\ud800x'), which is not valid Unicode text. "
            "Decode the source with errors='replace', or send base64"
        ),
    ),
    (
        {"deep": {"\udfff": 1}},
        (
            "a key of payload value deep contains a lone surrogate (str '\\udfff'), which is not "
            "valid Unicode text. "
            "Decode the source with errors='replace', or send base64"
        ),
    ),
    ({"price": float("nan")}, "payload value price is nan, which JSON does not have. Pass None or a string"),
    (
        {"p": [1, float("-inf")]},
        "payload value p[1] is -inf, which JSON does not have. Pass None or a string",
    ),
    ({"n": 10**1000}, "payload value n is an integer of more than 1,000 digits. Pass it as a string"),
    ({"n": -(10**5000)}, "payload value n is an integer of more than 1,000 digits. Pass it as a string"),
    ({1: "a"}, "a key of the payload is int 1; JSON keys are strings. Use str(1)"),
    ({"a": {None: 1}}, "a key of payload value a is None; JSON keys are strings. Use str(None)"),
    ({"a": [{True: 1}]}, "a key of payload value a[0] is bool True; JSON keys are strings. Use str(True)"),
    ({"a": {(1, 2): 1}}, "a key of payload value a is tuple (1, 2); JSON keys are strings. Use str((1, 2))"),
    ({"a": {1, 2}}, "payload value a is set {1, 2}, which is not JSON. " + NOT_JSON),
    ({"a": b"x"}, "payload value a is bytes b'x', which is not JSON. " + NOT_JSON),
    (LOOP, "payload value a[1] contains itself. Build a value without cycles"),
    (
        {"a": nested(500)},
        (
            "payload value a[0][0][0] ... [0][0] is nested more than 500 levels deep. "
            "Flatten it, or pass it as one string"
        ),
    ),
    (
        {"a": nested(10_000)},
        (
            "payload value a[0][0][0] ... [0][0] is nested more than 500 levels deep. "
            "Flatten it, or pass it as one string"
        ),
    ),
    (
        {"a": "x" * 300_000},
        (
            "payload is 300,009 bytes of JSON, more than the limit of 262,144 (256 KiB). "
            "Store it elsewhere (a table, a file, object storage) and pass a reference"
        ),
    ),
    (object, f"payload is type <class 'object'>, which is not JSON. {NOT_JSON}"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refusal_names_the_place(value: Any, message: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        dump(value)
    assert str(caught.value) == message


def test_the_depth_limit_is_exact() -> None:
    assert dump({"a": nested(499)}).count("[") == 499


def test_size_counts_stored_bytes() -> None:
    """As PostgreSQL prints jsonb: UTF-8, one space after each separator."""
    room = 256 * 1024 - len('{"a": "", "b": ""}')
    assert len(dump({"a": "é" * (room // 2), "b": ""}).encode()) == 256 * 1024 - 3
    with pytest.raises(InvalidPayload, match="payload is 262,145 bytes"):
        dump({"a": "é" * (room // 2) + "x", "b": ""})


@pytest.mark.parametrize(
    ("what", "limit", "message"),
    [
        (
            "result",
            RESULT_BYTES,
            (
                "result is 300,002 bytes of JSON, more than the limit of 65,536 (64 KiB). "
                "Store it elsewhere (a table, a file, object storage) and return a reference"
            ),
        ),
        (
            "metadata",
            METADATA_BYTES,
            (
                "metadata is 300,002 bytes of JSON, more than the limit of 8,192 (8 KiB). Put the "
                "data into the payload"
            ),
        ),
    ],
)
def test_other_limits(what: str, limit: int, message: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        dump("x" * 300_000, what, limit)
    assert str(caught.value) == message


def test_a_long_path_is_cut_and_printable() -> None:
    with pytest.raises(InvalidPayload) as caught:
        dump({"\x1b[31m" + "k" * 500: float("nan")})
    path = str(caught.value).removeprefix("payload value ").split(" is nan")[0]
    assert path.startswith("\\x1b[31mkkk")
    assert len(path) == 120


def test_a_wide_cycle_is_found_at_once() -> None:
    wide: list[Any] = [0] * 100_000
    wide.append(wide)
    with pytest.raises(InvalidPayload, match="contains itself"):
        dump({"a": wide})


def test_deeper_than() -> None:
    assert not deeper_than(nested(5), 5)
    assert deeper_than({"a": nested(5)}, 5)
    assert not deeper_than("x", 1)


def test_shown_survives_a_broken_repr() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert shown(Broken()).startswith("Broken ")
    assert shown(None) == "None"
    assert len(shown("x" * 1000)) < 80


@pytest.mark.parametrize("ids", [0, 1, 15, 16, 17, 200])
@pytest.mark.parametrize("number", [1e22, -1e22])
def test_a_large_float_is_found_behind_any_number_of_ids_that_look_like_one(ids: int, number: float) -> None:
    """Hyphens of ids stand behind e, as signs of exponents do."""
    names = ["0138e-9", "a-138e-4", "e+", "8e-", ",8e-x"]
    value = {"ids": [names[n % len(names)] for n in range(ids)], "number": number}
    text = dump(value)
    assert "e+22" not in text
    assert text.endswith("0000000000.0}")
    assert json.loads(text) == value
    del value["number"]
    assert dump(value) == json.dumps(value, separators=(",", ":"))
