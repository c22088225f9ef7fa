"""The scene that is open in the browser: one at a time, with what was seen of it, so that the tape can be wound back."""

import asyncio
import bisect
import json
import random
import threading
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.lab.place import LabHost
from holdfast.lab.scenes import scene_of
from holdfast.lab.stage import Stage

_KEPT = 900  # looks that can be wound back to: three minutes in which something changes all the time


class Hall:
    def __init__(self, place: LabHost) -> None:
        self._place = place
        self._opening = asyncio.Lock()
        self.stage: Stage | None = None
        self._past: list[tuple[float, str]] = []  # when, and what a page was sent
        self._playing: threading.Thread | None = None
        self.trouble = ""  # of the last play

    async def open(self, number: int, *, unsafe: bool = False, again: bool = False) -> Stage:
        """The stage of this scene. Another one is closed, and its workers end. `again`: from the beginning."""
        async with self._opening:
            stage = self.stage
            if stage is not None and stage.scene.number == number and not again:
                return stage
            values = stage.values if stage is not None and stage.scene.number == number else None
            await asyncio.to_thread(self._close)
            scene = scene_of(number)
            self.stage = await asyncio.to_thread(Stage, self._place, scene, unsafe=unsafe, values=values)
            return self.stage

    def now(self, number: int) -> Stage:
        if self.stage is None or self.stage.scene.number != number:
            raise HoldfastError("this scene is not open any more. Open it again: reload the page")
        return self.stage

    def look(self, number: int) -> str:
        """The content of a page, as JSON, and kept for the tape."""
        stage = self.now(number)
        seen: dict[str, Any] = {**stage.look(), "playing": self.is_playing, "trouble": self.trouble}
        text = json.dumps(seen, default=str)
        if not self._past or self._past[-1][1] != text:
            self._past.append((seen["at"], text))
            del self._past[:-_KEPT]
        return text

    def past(self, number: int, at: float) -> str:
        """The content at that time."""
        self.now(number)
        if not self._past:
            return self.look(number)
        place = bisect.bisect_right(self._past, at, key=lambda one: one[0])
        return self._past[max(place - 1, 0)][1]

    @property
    def is_playing(self) -> bool:
        return self._playing is not None and self._playing.is_alive()

    def play(self, number: int) -> None:
        """The scene's script, while the page looks on."""
        stage = self.now(number)
        if self.is_playing:
            return
        self.trouble = ""

        def run() -> None:
            try:
                stage.play(random.Random())  # noqa: S311 another one each time
            except Exception as error:  # noqa: BLE001 the page says it; closing the scene in the middle of it is none
                self.trouble = "" if self.stage is not stage else str(error)[:500]

        self._playing = threading.Thread(target=run, name="play", daemon=True)
        self._playing.start()

    def _close(self) -> None:
        stage, self.stage = self.stage, None
        self._past, self.trouble = [], ""
        if stage is not None:
            stage.close()

    def close(self) -> None:
        self._close()
