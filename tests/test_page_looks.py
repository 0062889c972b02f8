"""The page in a real Chromium: how it looks, and that all can use it: narrow, dark, read aloud."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

pytest.importorskip("selenium")

import browser_page
from browser_page import Page, model_file

browser, page = browser_page.browser, browser_page.page


def test_nothing_is_wider_than_a_telephone(page: Page, tmp_path: Path) -> None:
    model_file(tmp_path / "model.safetensors")
    page.find("#file").send_keys(str(tmp_path / "model.safetensors"))
    page.size(360, 740)
    for tab in ("layout", "reshard", "model"):
        page.find(f"#tab-{tab}").click()
        wide = page.driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 360, tab


def test_equal_chunks_are_as_wide(page: Page) -> None:
    page.type("#spec", "None,(data,model)")
    widths = {cell.size["width"] for cell in page.all("#array tbody td")}
    assert len(page.all("#array tbody td")) == 8
    assert max(widths) - min(widths) <= 1
    page.find("#tab-reshard").click()
    page.find("#tab-layout").click()
    assert {cell.size["width"] for cell in page.all("#array tbody td")} == widths


def test_dark_and_light(page: Page) -> None:
    def ground() -> str:
        return page.driver.execute_script("return getComputedStyle(document.body).backgroundColor")

    assert ground() == "rgb(255, 255, 255)"
    page.media("dark")
    assert ground() == "rgb(22, 24, 27)"


@functools.cache
def axe() -> str:
    """axe-core: of AXE_CORE, or of a package."""
    if named := os.environ.get("AXE_CORE"):
        return Path(named).read_text("utf-8")
    package = pytest.importorskip("axe_core_python", reason="no axe-core")
    return (Path(package.__file__).parent / "axe.min.js").read_text("utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tab", ["layout", "error", "reshard", "model"])
def test_axe_finds_nothing_serious(page: Page, tmp_path: Path, scheme: str, tab: str) -> None:
    page.media(scheme, motion="reduce")
    if tab == "error":
        page.type("#spec", "datum")
    else:
        page.find(f"#tab-{tab}").click()
    if tab == "reshard":
        page.find("#next").click()
    if tab == "model":
        model_file(tmp_path / "model.safetensors")
        page.type("#rules", "*.bias -> data")
        page.find("#file").send_keys(str(tmp_path / "model.safetensors"))
        page.until(lambda: page.all("#totals"))
    # As the driver's, since the page's policy lets no other script in.
    page.driver.execute_script(axe())
    found = page.driver.execute_async_script("axe.run().then(arguments[0])")
    assert len(found["passes"]) > 10
    serious = [
        (each["id"], each["nodes"][0]["html"])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert not serious
