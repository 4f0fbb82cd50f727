"""Draws deploy/pictures, the status page after five simulated hours:

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
from support.simulated_hours import hours

EVENTS = 150_000
COLOURS = 96
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "is_mobile": True, "device_scale_factor": 1.5},
}
HEIGHTS = {"light": 1500, "dark": 1500, "phone": 2000}


def draw(folder: Path) -> None:
    """Write status-light.png, status-dark.png and status-phone.png, small enough to be kept with the code."""
    *_, last = hours(EVENTS)
    with HttpServer(View(last), port=0) as server, chromium() as browser:
        for look, options in LOOKS.items():
            with opened(browser, server.url, **options) as tab:
                clip = {"x": 0, "y": 0, "width": options["viewport"]["width"], "height": HEIGHTS[look]}
                taken = tab.page.screenshot(full_page=True, clip=clip)
            picture = Image.open(BytesIO(taken)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
            picture.save(folder / f"status-{look}.png", optimize=True)


if __name__ == "__main__":
    draw(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "deploy" / "pictures"))
