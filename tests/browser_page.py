"""The page in Chromium, as tests read it and act on it.

Each module of tests takes `browser` and `page` over as its own fixtures.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from hostmesh import _cli

BASE = ["plan", "--mesh", "data=4,model=2", "--processes", "4", "--order", "interleaved"]
BASE += ["--shape", "64,128", "--process", "2"]

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")


def start(chromium: str, driver: str) -> Any:
    """A browser that notes its complaints and its requests."""
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


class Page:
    """What a reader sees and does."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.size(1280, 900)
        self.media("light")
        driver.get_log("browser")
        driver.get_log("performance")
        driver.get("about:blank")  # so that an address that differs behind # alone is loaded anew
        driver.get(url)

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def type(self, selector: str, words: str) -> None:
        self.find(selector).send_keys(Keys.CONTROL, "a")
        # One at a time: each stroke draws anew, and the focus must stay where it is.
        for sign in words:
            self.driver.switch_to.active_element.send_keys(sign)

    def choose(self, selector: str, value: str) -> None:
        self.find(f"{selector} option[value='{value}']").click()

    def until(self, holds: Any) -> None:
        WebDriverWait(self.driver, 30).until(lambda _: holds())

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def media(self, scheme: str, motion: str = "no-preference") -> None:
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def hover(self, element: Any) -> None:
        webdriver.ActionChains(self.driver).move_to_element(element).perform()

    def error(self) -> str:
        return self.text("#error")

    def cells(self, figure: str) -> list[list[str]]:
        return [
            [cell.text for cell in row.find_elements(By.TAG_NAME, "td")]
            for row in self.all(f"#{figure} tbody tr")
        ]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium and its driver from PATH, never a download of them."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        if os.environ.get("CI"):
            pytest.fail("chromium and chromium-driver are needed in CI")
        pytest.skip("no chromium, or no chromedriver, on PATH")
    driver = start(*programs)
    try:
        yield driver
    finally:
        driver.quit()


def write_page(path: Path, spec: str) -> str:
    result = CliRunner().invoke(_cli.main, [*BASE, "--spec", spec, "--html", str(path)])
    assert result.exit_code == 0, result.output
    return path.as_uri()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Page]:
    """Opened from a file; nothing was asked of any network, and no script failed, when it ends."""
    url = write_page(tmp_path / "out.html", "data,None")
    opened = Page(browser, url)
    yield opened
    complaints = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert not complaints
    asked = set()
    for line in browser.get_log("performance"):
        message = json.loads(line["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.add(message["params"]["request"]["url"].partition("#")[0])
    assert url in asked, "requests are not seen at all"
    assert {address for address in asked if not address.startswith(("data:", "about:"))} == {url}


def model_file(path: Path) -> dict[str, tuple[int, ...]]:
    tensors = {
        f"layer.{i}.{part}": np.zeros(shape, kind)
        for i in range(150)
        for part, shape, kind in (
            ("weight", (8, 16), ml_dtypes.bfloat16),
            ("bias", (6,), np.float32),
        )
    }
    save_file(tensors, path)
    return {name: value.shape for name, value in tensors.items()}
