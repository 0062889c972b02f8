"""The page in a real Chromium: its second tab, which steps from one spec to another."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hostmesh import _cli

pytest.importorskip("selenium")
from selenium.webdriver.common.keys import Keys

import browser_page
from browser_page import BASE, Page

browser, page = browser_page.browser, browser_page.page


def test_resharding_is_stepped(page: Page) -> None:
    page.find("#tab-layout").send_keys(Keys.ARROW_RIGHT)
    assert page.driver.switch_to.active_element.text == "Reshard"
    assert page.find("#tab-reshard").get_attribute("aria-selected") == "true"
    assert page.text("#step").startswith("Before: P('data')")
    held: list[list[str]] = []
    blocks = []
    while page.find("#next").get_attribute("aria-disabled") == "false":
        page.find("#next").click()
        held.append([map_.text for map_ in page.all(".map")])
        blocks += [
            (int(a), int(b), box)
            for a, box, b in re.findall(
                r"process (\d) sends x(\[.*?\]) to process (\d) \(4,096", page.text("#sent")
            )
        ]
    assert page.text("#step").startswith("After: P(None, 'model')")
    # Process p holds rows of data = p // 2 and + 2, and must end with all rows of column p % 2.
    expected = set()
    for receiver in range(4):
        for data in range(4):
            if data % 2 != receiver // 2:
                column = receiver % 2
                box = f"[{data * 16}:{data * 16 + 16}, {column * 64}:{column * 64 + 64}]"
                expected.add((receiver, box))
    assert {(receiver, box) for _, receiver, box in blocks} == expected
    assert len(blocks) == 8
    assert all(sender // 2 == int(box[1:].split(":")[0]) // 16 % 2 for sender, _, box in blocks)
    assert page.text("#travels").startswith("32,768 bytes travel between processes in 8 blocks")
    assert not page.all("#hosts-travel")
    assert page.cells("nearest")[-1] == ["in another process", "65,536"]
    page.type("#hosts", "2")
    # Processes 0 and 1 are a host, and have the same rows: all that travels comes from the other.
    said = "Of these, 0 bytes stay within a host and 32,768 go between hosts."
    assert page.text("#hosts-travel") == said
    assert "hosts=2" in page.find("#link").get_attribute("value")
    page.type("#hosts", "5")
    assert "5 hosts for 4 processes" in page.error()
    page.type("#hosts", "1")
    assert "32,768 bytes stay within a host" in page.text("#hosts-travel")
    page.find("#next").click()
    page.find("#next").click()
    page.find("#next").click()
    page.find("#next").click()
    assert all("?" not in text for text in held[-1])
    assert any("?" in text for text in held[0])
    page.find("#back").click()
    assert page.text("#step").startswith("Round 3 of 3: p2 → p1. 2 blocks")
    page.media("light", motion="reduce")
    page.find("#back").click()
    style = "return getComputedStyle(document.querySelector('.arrives')).animationName"
    assert page.driver.execute_script(style) == "none"


def test_a_reshard_of_the_command_line_is_what_it_begins_with(page: Page, tmp_path: Path) -> None:
    asked = [*BASE, "--reshard", "data -> None,model", "--hosts", "2"]
    result = CliRunner().invoke(_cli.main, [*asked, "--html", str(tmp_path / "out.html")])
    assert result.exit_code == 0, result.output
    page.driver.get("about:blank")  # what its link says goes before what it begins with
    page.driver.get((tmp_path / "out.html").as_uri())
    assert page.text("#step").startswith("Before: P('data')")
    numbers = json.loads(CliRunner().invoke(_cli.main, [*asked, "--json"]).output)["bytes"]
    places = ("on_the_device", "within_process", "between_processes_of_a_host", "between_hosts")
    shown = [int(row[1].replace(",", "")) for row in page.cells("nearest")]
    assert shown == [numbers[place] for place in places]
