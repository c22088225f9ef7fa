"""Arrays as text: what the server reads back is what went in."""

import pytest

from holdfast import sql
from holdfast.store.arrays import int_array, plain_array, repeated_uuids, text_array, uuid_array


def test_plain_words_go_without_quotes() -> None:
    assert plain_array(["1", "2"]) == "{1,2}"
    assert plain_array([]) == "{}"


def test_numbers_go_as_text() -> None:
    assert int_array([1, -2]) == "{1,-2}"


def test_no_uuids_are_an_array_of_no_dimension() -> None:
    assert uuid_array([]).hex() == "00000000" + "00000000" + "00000b86"


def test_uuids_of_which_many_are_alike_are_the_same_array() -> None:
    first, second = (f"{n}f3c5a1e-0000-7000-8000-00000000000{n}" for n in (1, 2))
    for texts in ([first], [first, first], [second, first, second]):
        assert repeated_uuids(texts) == uuid_array(texts)


def test_any_text_goes_quoted_and_null_stays_null() -> None:
    assert text_array(['a"b', "c\\d", "NULL", "", None, "{x,y}"]) == r'{"a\"b","c\\d","NULL","",NULL,"{x,y}"}'


def test_many_texts_are_quoted_at_once() -> None:
    assert text_array(['a"b', "c\\d", "", "{x,y}"]) == r'{"a\"b","c\\d","","{x,y}"}'
    assert text_array([]) == "{}"
    assert text_array(["", ""]) == '{"",""}'
    assert text_array(["a\0b", "c"]) == '{"a\0b","c"}'  # the driver refuses it, as one text


def test_a_statement_on_the_table_of_a_queue() -> None:
    text = sql.query_in("settle_finish", "mail")
    assert "holdfast.queue_mail" in text
    assert "holdfast.work " not in text
    assert "holdfast.inbox" in sql.query_in("claim", "inbox")
    assert "holdfast.workers" in sql.query_in("claim", "inbox")  # only the whole word


@pytest.mark.parametrize("queue", ["", "Mail", "a b", "a;b", 'a"b', "1a", "a" * 41, "mail\n"])
def test_what_is_no_name_of_a_queue_gets_into_no_statement(queue: str) -> None:
    with pytest.raises(ValueError, match="is no name of a queue"):
        sql.query_in("claim", queue)
