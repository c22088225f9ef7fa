"""A scene's script, without a browser: what `holdfast lab --play` runs, and the tests."""

import random
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.lab.place import LabHost, open_place
from holdfast.lab.scene import Scene
from holdfast.lab.scenes import scene_of
from holdfast.lab.stage import Stage


@dataclass(frozen=True, slots=True)
class Played:
    scene: int
    title: str
    promise: str
    unsafe: bool
    held: bool
    counters: dict[str, int]
    tape: list[str]
    seed: int

    @property
    def as_expected(self) -> bool:
        """A promise holds, and does not where its guard is switched off."""
        return self.held != self.unsafe

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"as_expected": self.as_expected}

    def lines(self) -> list[str]:
        """For a person."""
        guard = "with its guard switched off" if self.unsafe else "as it is"
        counted = ", ".join(f"{label} {count}" for label, count in self.counters.items())
        verdict = f"{'It holds' if self.held else 'It is broken'}: {self.promise}"
        return [f"Scene {self.scene}, {self.title}, {guard}.", *self.tape, counted + ".", verdict]


def play_alone(number: int, *, unsafe: bool = False, seed: int = 0) -> Played:
    """On a server that is there for this play alone."""
    scene = scene_of(number)
    with open_place() as place:
        return play(place, scene, unsafe=unsafe, seed=seed)


def play(place: LabHost, scene: Scene, *, unsafe: bool = False, seed: int = 0) -> Played:
    with closing(Stage(place, scene, unsafe=unsafe)) as stage:
        stage.play(random.Random(seed))  # noqa: S311 a script that can be repeated
        counters = stage.counters()
        return Played(
            scene.number,
            scene.title,
            scene.promise.sentence,
            unsafe,
            stage.holds(counters),
            dict(counters),
            [f"{m.at:6.2f} s  {m.who} {m.text}" for m in stage.moments()],
            seed,
        )
