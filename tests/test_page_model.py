"""The page in a real Chromium: its third tab, which lays out a model's file."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("selenium")
from selenium.webdriver.common.keys import Keys

import browser_page
from browser_page import Page, model_file

browser, page = browser_page.browser, browser_page.page


def test_a_model_file_is_chosen_and_dropped(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    shapes = model_file(path)
    page.find("#tab-model").click()
    page.type("#rules", "*.weight -> data,model\n*.bias -> None")
    page.find("#file").send_keys(str(path))
    page.until(lambda: "300 tensors" in page.text("#model"))
    # 150 weights of 8 x 16 x 2 bytes over 8 devices, and 150 whole biases of 6 x 4.
    assert f"On each of 8 devices: {150 * 32 + 150 * 24:,} bytes" in page.text("#totals")
    assert len(page.all("#model tbody tr")) == 200
    page.find("#more").click()
    assert len(page.all("#model tbody tr")) == len(shapes)
    page.type("#filter", "layer.14[.]")
    rows = [row.text for row in page.all("#model tbody tr")]
    assert rows == [
        "layer.14.bias 24 (6,) (6,) float32 P() *.bias",
        "layer.14.weight 32 (2, 8) (8, 16) bfloat16 P('data', 'model') *.weight",
    ]
    page.type("#filter", "layer.14")
    name, size = (f"[data-sort='{column}']" for column in ("Tensor", "Bytes a device"))

    def column(of: str) -> tuple[str | None, list[str]]:
        order = page.find(f"th:has({of})").get_attribute("aria-sort")
        place = 1 + ["Tensor", "Bytes a device"].index(page.find(of).get_attribute("data-sort"))
        return order, [cell.text for cell in page.all(f"#model tbody td:nth-child({place})")]

    assert column(name)[0] == column(size)[0] == "none"
    page.find(size).click()
    assert column(size) == ("descending", ["32"] * 11 + ["24"] * 11)
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)  # the focus stays on it
    assert column(size) == ("ascending", ["24"] * 11 + ["32"] * 11)
    names = sorted(name for name in shapes if "layer.14" in name)
    page.find(name).click()
    assert column(name) == ("ascending", names)
    assert column(size)[0] == "none"
    page.driver.switch_to.active_element.send_keys(Keys.SPACE)
    assert column(name) == ("descending", names[::-1])
    page.type("#filter", "(")
    assert "it is a regular expression" in page.error()
    page.type("#filter", "layer.14[.]")
    assert page.error() == ""
    page.type("#rules", "* -> data")
    assert "its size 6 must be a multiple of 4" in page.text("#model")
    assert "150 tensors cannot be cut so, and are left out" in page.text("#totals")
    page.type("#rules", "*.bias -> None")
    assert "matches no rule" in page.text("#model")


def test_a_file_is_dropped_anywhere(page: Page, tmp_path: Path) -> None:
    drop = """
        const transfer = new DataTransfer();
        transfer.items.add(new File([new Uint8Array(arguments[0])], arguments[1]));
        document.querySelector("h1").dispatchEvent(
            new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
        """
    model_file(tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    page.driver.execute_script(drop, list(whole), "dropped.safetensors")
    page.until(lambda: "300 tensors" in page.text("#model"))
    assert page.text("#model h2") == "dropped.safetensors"
    page.find("#tab-layout").click()
    page.driver.execute_script(drop, [0, 0, 0], "broken.safetensors")
    page.until(page.error)
    assert "StorageError: broken.safetensors\n  given: a file of 3 bytes" in page.find(
        "#error"
    ).get_attribute("textContent")
    assert page.find("#tab-model").get_attribute("aria-selected") == "true"
