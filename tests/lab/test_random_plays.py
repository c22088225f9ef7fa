"""Whoever presses buttons and turns knobs at random: nothing hangs, and no promise breaks while its guard is there."""

import random
import time
from contextlib import closing

import pytest

from holdfast.errors import HoldfastError
from holdfast.lab.place import LabHost
from holdfast.lab.scene import Scene
from holdfast.lab.scenes import all_scenes
from holdfast.lab.stage import Stage

PLAYS = 100
MOST_ACTS = 8
SLOW = {"jobs", "hot", "pages", "seconds"}  # knobs that a play has no time for: they stay below their middle


def turned(stage: Stage, chance: random.Random) -> None:
    for knob in stage.scene.knobs:
        if chance.random() < 0.5:
            most = min(knob.most, max(knob.value, knob.least)) if knob.name in SLOW else knob.most
            steps = int((most - knob.least) / knob.step)
            stage.turn(knob.name, round(knob.least + knob.step * chance.randint(0, steps), 6))


def pressed(stage: Stage, chance: random.Random) -> str:
    """One button. What it refuses is said in a sentence; what it waits for happens."""
    act = chance.choice(list(stage.scene.acts))
    of = chance.choice(sorted(stage.crew.members) or [""]) if act.of_worker else None
    said = f"{act.name} {of or ''}".strip()
    try:
        stage.act(act.name, of)
    except HoldfastError as error:
        if "it did not happen within" in str(error):
            raise AssertionError(f"{said}: {error}") from error
        return f"{said}, refused: {str(error)[:80]}"
    return said


def let_go(stage: Stage) -> None:
    """Nothing is held or frozen any more, and somebody works."""
    stage.stepping(False)
    for held in stage.folder.glob("hold-*"):
        held.unlink(missing_ok=True)
    for member in stage.crew.alive:
        if member.state == "frozen":
            member.wake()
    if not [member for member in stage.crew.alive if member.state == "running"]:
        stage.start_ready()


def play(place: LabHost, scene: Scene, seed: int) -> None:
    chance = random.Random(seed)
    pressed_so_far: list[str] = []
    with closing(Stage(place, scene)) as stage:
        try:
            for _ in range(chance.randint(1, MOST_ACTS)):
                turned(stage, chance)
                pressed_so_far.append(pressed(stage, chance))
                stage.look()
                assert stage.holds(), stage.counters()
                time.sleep(chance.random() * 0.3)
            let_go(stage)
            end = time.monotonic() + 60
            while time.monotonic() < end and stage.number(
                "SELECT count(*) FROM holdfast.work WHERE available_at < now()"
            ):
                time.sleep(0.1)
            assert stage.holds(), stage.counters()
        except AssertionError as error:
            lines = [f"{m.at:6.2f} s  {m.who} {m.text}" for m in stage.moments()[-40:]]
            raise AssertionError(
                f"scene {scene.number}, seed {seed}: {'; '.join(pressed_so_far)}\n{error}\n"
                + "\n".join(lines)
            ) from error


@pytest.mark.long
def test_a_hundred_random_plays_break_nothing(place: LabHost) -> None:
    scenes = all_scenes()
    for n in range(PLAYS):
        play(place, scenes[n % len(scenes)], random.randrange(10**9))


def test_a_random_play_of_a_scene_breaks_nothing(place: LabHost) -> None:
    play(place, next(scene for scene in all_scenes() if scene.name == "stale_owner"), 7)
