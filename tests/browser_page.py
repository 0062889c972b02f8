"""A page in Chromium, as tests read it and act on it."""

from __future__ import annotations

from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

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
