"""Arguments typed on the command line become a payload, or an error that says what to type."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.cli.arguments import parse_arguments, parse_moment, parse_rate, parse_span
from holdfast.errors import ConfigurationError


def test_text_and_json_by_name() -> None:
    found = parse_arguments(
        ["note=a=b", "n:=17", "empty=", 'deep:={"a": [1, null, true]}', 's:="x"', "17=17"]
    )
    assert found == {
        "note": "a=b",
        "n": 17,
        "empty": "",
        "deep": {"a": [1, None, True]},
        "s": "x",
        "17": "17",
    }
    assert list(found) == ["note", "n", "empty", "deep", "s", "17"]
    assert parse_arguments([]) == {}


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (["a=1", "a:=2"], "'a' is given twice"),
        (["=1"], "has no name"),
        ([":=1"], "has no name"),
        (["a"], "Write name=text for a string, or name:=json"),
        (["a:="], "is not JSON"),
        (["a:=hello"], "For a string write a=hello"),
        (["a:=NaN"], "JSON has no NaN"),
        (["a:=[-Infinity]"], "JSON has no -Infinity"),
        (["a:=1e999"], "1e999 is too large"),
        (["a:=" + "[" * 100_000], "is nested too deep"),
        (["a:=" + "9" * 5000], "is not JSON"),
    ],
)
def test_what_is_wrong_is_said(items: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_arguments(items)
    assert said in str(caught.value)


def test_spans_of_time() -> None:
    spans = {
        "90": 90.0,
        "90s": 90.0,
        "15m": 900.0,
        "2h": 7200.0,
        "3d": 259_200.0,
        "1w": 604_800.0,
        "250ms": 0.25,
    }
    assert {text: parse_span(text, "x") for text in spans} == spans
    assert (parse_span(" 1.5 h ", "x"), parse_span("0", "x")) == (5400.0, 0.0)
    for wrong in ("", "h", "-5", "5 m s", "1e3", "5y", "inf", "nan", "٣d", "5M", "1,5h", "9" * 400):
        with pytest.raises(ConfigurationError, match="Write 90s, 15m, 2h, 3d or plain seconds"):
            parse_span(wrong, "--older-than")


def test_moments() -> None:
    assert parse_moment("5m", "x") == timedelta(minutes=5)
    assert parse_moment("2030-01-31T12:00Z", "x") == datetime(2030, 1, 31, 12, tzinfo=UTC)
    assert parse_moment("2030-01-31T12:00+02:00", "x") == datetime(2030, 1, 31, 10, tzinfo=UTC)
    for wrong, said in (
        ("soon", "is neither a span of time nor a time"),
        ("2030-02-31T12:00Z", "is neither a span of time nor a time"),
        ("2030-01-31T12:00", "has no time zone. Write 2030-01-31T12:00Z for UTC"),
        ("999999999999999d", "is too far ahead"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            parse_moment(wrong, "--run-after")
        assert said in str(caught.value)


def test_rates() -> None:
    assert [parse_rate(text, "x") for text in ("100/s", "6/m", "3600/h", "86400 / d")] == [
        100.0,
        0.1,
        1.0,
        1.0,
    ]
    for wrong in ("100", "0/s", "0.0/m", "-1/s", "5/y", "/s", "1e9/s", "inf/s"):
        with pytest.raises(ConfigurationError, match="Write 100/s, 5/m or 1000/h"):
            parse_rate(wrong, "--rate")
