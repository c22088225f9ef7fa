"""Each scene's script, without a browser: the promise holds, and breaks when its guard is switched off."""

import random

import pytest

from holdfast.errors import ConfigurationError
from holdfast.lab.place import LabHost
from holdfast.lab.play import play
from holdfast.lab.scene import Scene
from holdfast.lab.scenes import NAMES, all_scenes, scene_of

SCENES = {scene.name: scene for scene in all_scenes()}


@pytest.mark.parametrize("name", SCENES)
def test_the_promise_holds(place: LabHost, name: str) -> None:
    played = play(place, SCENES[name])
    assert played.held, "\n".join(played.lines())
    assert played.tape


@pytest.mark.parametrize("name", SCENES)
def test_it_breaks_when_its_guard_is_switched_off(place: LabHost, name: str) -> None:
    played = play(place, SCENES[name], unsafe=True)
    assert not played.held, "\n".join(played.lines())


@pytest.mark.long
@pytest.mark.parametrize("name", SCENES)
def test_the_promise_holds_in_100_random_plays(place: LabHost, name: str) -> None:
    for _ in range(100):
        seed = random.randrange(10**9)
        played = play(place, SCENES[name], seed=seed)
        assert played.held, f"seed {seed}\n" + "\n".join(played.lines())


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_whole(name: str) -> None:
    """What a page needs, and a play."""
    scene: Scene = SCENES[name]
    labels = [label for label, _ in scene.promise.counters]
    assert scene.promise.broken
    assert set(scene.promise.broken) <= set(labels)
    assert scene.story
    assert scene.tables
    assert len({act.name for act in scene.acts}) == len(scene.acts)
    assert not {"again", "enter", "play", "knob"} & {
        act.name for act in scene.acts
    }  # those are the page's own
    assert scene.name == NAMES[scene.number - 1]


def test_a_scene_that_there_is_not() -> None:
    with pytest.raises(ConfigurationError, match=rf"there is no scene 99 \(there are 1 to {len(NAMES)}\)"):
        scene_of(99)
