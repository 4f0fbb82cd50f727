"""Draw deploy/pictures: the status page after hours of a simulated recommender, and of a ramp with several rewards:

PYTHONPATH=tests .venv/bin/python tests/tools/pictures.py
"""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from streameval.service.http.server import HttpServer
from support.factories import View
from support.integration.browser import DESKTOP, PHONE, chromium, opened
from support.paths import ROOT
from support.simulated_hours import hours, hours_of_a_ramp

COLOURS = 256
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "is_mobile": True, "device_scale_factor": 1.5},
}
HEIGHTS = {"light": 1500, "dark": 1500, "phone": 2000}


def draw(folder: Path, height: int | None) -> None:
    """Write three pictures of each page, small enough to be kept with the code.

    Args:
        folder: Where to write the pictures.
        height: Height in pixels, if not the usual one.
    """
    with chromium() as browser:
        for name, statuses in {"status": hours(150_000), "ramp": hours_of_a_ramp(60_000)}.items():
            *_, last = statuses
            with HttpServer(View(last), port=0) as server:
                for look, options in LOOKS.items():
                    with opened(browser, server.url, **options) as tab:
                        size = {"width": options["viewport"]["width"], "height": height or HEIGHTS[look]}
                        taken = tab.page.screenshot(full_page=True, clip={"x": 0, "y": 0, **size})
                    picture = Image.open(BytesIO(taken)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
                    picture.save(folder / f"{name}-{look}.png", optimize=True)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "deploy" / "pictures")
    draw(target, int(sys.argv[2]) if len(sys.argv) > 2 else None)
