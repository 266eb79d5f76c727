"""A headless Chromium without network, for the tests of pages."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")

needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium and chromium-driver are not installed"
)


_PIXELS = """
const [png, done] = arguments;
const image = new Image();
image.onload = () => {
  const {width, height} = image;
  const board = Object.assign(document.createElement("canvas"), {width, height});
  const pen = board.getContext("2d");
  pen.drawImage(image, 0, 0);
  const {data} = pen.getImageData(0, 0, width, height);
  let text = "";
  for (let at = 0; at < data.length; at += 4096)
    text += String.fromCharCode(...data.slice(at, at + 4096));
  done([height, btoa(text)]);
};
image.src = `data:image/png;base64,${png}`;
"""


class Browser:
    """A page in Chromium."""

    def __init__(self, driver: Any) -> None:
        """Take a driver of selenium."""
        self.driver = driver

    def open(self, path: Path) -> None:
        """Open the file ``path`` and wait until its pictures are drawn."""
        self.driver.get(path.resolve().as_uri())
        self.wait("document.documentElement.dataset.ready === 'yes'")

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the value of the JavaScript expression ``script``."""
        return self.driver.execute_script(f"return {script}", *arguments)

    def wait(self, condition: str, seconds: float = 30) -> None:
        """Wait until the JavaScript expression ``condition`` is true."""
        end = monotonic() + seconds
        while not self.run(condition):
            assert monotonic() < end, f"not within {seconds} s: {condition}; {self.console()}"
            sleep(0.05)

    def find(self, selector: str) -> Any:
        """Return the first element of ``selector``."""
        return self.driver.find_element("css selector", selector)

    def keys(self, element: Any, *names: str) -> None:
        """Press the keys ``names`` of selenium's ``Keys``, or type other text."""
        from selenium.webdriver.common.keys import Keys

        element.send_keys(*(getattr(Keys, name, name) for name in names))

    def console(self) -> list[str]:
        """Return the messages of the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def pixels(self, element: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return rows of the pixels of ``element``, red, green and blue each."""
        height, found = self.driver.execute_async_script(_PIXELS, element.screenshot_as_base64)
        data = np.frombuffer(base64.b64decode(found), np.uint8)
        return data.reshape(height, -1, 4)[:, :, :3]

    def emulate(self, **features: str) -> None:
        """Set CSS media features: ``prefers_color_scheme="dark"``."""
        given = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": given})

    def width(self, pixels: int) -> None:
        """Set the width of the view."""
        metrics = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a browser that reaches no network."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = CHROMIUM or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(argument)
    # Whatever the page asks for from a network fails.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER or ""))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
