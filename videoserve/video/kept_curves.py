"""The curves of a calibration, kept beside it: they take seconds to make, with many steps a quarter of a minute."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from videoserve_cache.steps.calibration import Calibration, seal
from videoserve_cache.steps.curve import Curves, Point
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.rebuilt import rebuilt_forecast
from videoserve_kernels.kept_json import read_json, write_json

# Raised with every change of what plans are made, so that what an earlier release kept is made again.
VERSION = 2


class KeptCurves(Curves):
    """Curves that another process need not make again. Sealed like the calibration: they decide about quality."""

    def __init__(self, calibration: Calibration, path: Path, key: bytes) -> None:
        super().__init__(calibration)
        self._path = path
        self._key = key

    def of(self, guards: Guards) -> list[Point]:
        if guards not in self._made:
            self._made[guards] = self._kept(guards) or self._make(guards)
        return self._made[guards]

    def _make(self, guards: Guards) -> list[Point]:
        points = super().of(guards)
        told = [asdict(point) for point in points]
        write_json(self._path, {"points": told, "seal": self._seal(guards, told)})
        return points

    def _kept(self, guards: Guards) -> list[Point] | None:
        """None when what is kept is of another calibration or other guards, or not ours."""
        kept = read_json(self._path)
        if kept is None or kept["seal"] != self._seal(guards, kept["points"]):
            return None
        return [Point(**(point | {"forecast": rebuilt_forecast(point["forecast"])})) for point in kept["points"]]

    def _seal(self, guards: Guards, told: list[dict[str, Any]]) -> str:
        about = [VERSION, self.calibration.digest, asdict(guards), told]
        return seal(self._key, json.dumps(about, sort_keys=True))
