"""Options of `app.webhooks(...)` that cannot work are refused when they are declared, not with each event."""

from typing import Any

import pytest

from holdfast import Registry, TaskDefinitionError


async def later(_: Any) -> Any:
    return "acme"


class Later:
    async def __call__(self, _: Any) -> Any:
        return {}


@pytest.mark.parametrize("option", ["tenant", "payload"])
@pytest.mark.parametrize("function", [later, Later()])
def test_a_function_that_nobody_awaits_is_refused(option: str, function: Any) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        Registry("hooks").webhooks(on=["*"], **{option: function})
    why = f"webhooks: {option} is called for each event, and nothing awaits it: write def, not async def"
    assert str(caught.value) == why


@pytest.mark.parametrize("option", ["tenant", "payload"])
def test_a_function_and_an_object_that_is_called_are_taken(option: str) -> None:
    class Now:
        def __call__(self, _: Any) -> Any:
            return None

    functions: list[Any] = [lambda _: None, Now()]
    for n, function in enumerate(functions):
        Registry(f"hooks{n}").webhooks(on=["*"], **{option: function})
