"""The page in a real Chromium: a layout, changed and read by pointer and keyboard; and how it is served."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import urllib.request

import pytest
from click.testing import CliRunner

import hostmesh as hm
from hostmesh import _cli
from hostmesh._errors import HostmeshError

pytest.importorskip("selenium")
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

import browser_page
from browser_page import BASE, Page

browser, page = browser_page.browser, browser_page.page


def test_what_it_begins_with_is_the_command_lines(page: Page) -> None:
    assert page.text("h1").startswith("hostmesh")
    assert page.cells("mesh") == [
        ["p0 d0", "p1 d1"],
        ["p2 d2", "p3 d3"],
        ["p0 d4", "p1 d5"],
        ["p2 d6", "p3 d7"],
    ]
    assert "Process 2's local array: float32 (32, 128)" in page.text("#local h2")
    assert page.cells("local") == [["p2 d2"], ["p2 d6"]]
    assert "16:32 → 48:64" in page.text("#local")
    assert page.cells("array")[0] == ["p0 d0\n=\np1 d1"]
    assert page.text("#bytes") == (
        "Bytes: 8,192 on each device, 16,384 on process 2,"
        " 65,536 on all devices (array 32,768, 2 copies)."
    )
    assert "here p0 has d0 and d4, with a gap. hostmesh takes it." in page.text("#jax")
    assert "Processes 0 and 1 hold the same 2 chunks" in page.text("#groups")
    shown = CliRunner().invoke(_cli.main, [*BASE, "--spec", "data,None", "--json"])
    assert page.text("#code").splitlines() == json.loads(shown.output)["code"]


def test_axes_are_resized_added_removed_and_named(page: Page) -> None:
    page.type("[data-row='0'] [data-part='1']", "2")
    assert page.text("#mesh h2") == "Mesh data=2 x model=2"
    assert len(page.cells("mesh")) == 2
    page.find("#add-axis").click()
    page.type("[data-row='2'] [data-part='1']", "2")
    page.type("[data-row='2'] [data-part='0']", "pipe")
    assert page.text("#mesh h2") == "Mesh data=2 x model=2 x pipe=2"
    assert [c.text for c in page.all("#mesh caption")] == ["data 0", "data 1"]
    page.find("[data-remove='1']").click()
    assert page.text("#mesh h2") == "Mesh data=2 x pipe=2"
    page.choose("#order", "list")
    page.type("#owners", "[3, 1, 1, 3]")
    assert page.cells("mesh") == [["p3 d0", "p1 d1"], ["p1 d2", "p3 d3"]]
    page.type("#shape", "64, 8, 2")
    assert "float32 (64, 8, 2)" in page.text("#array h2")
    page.type("#dtype", "bf16")
    assert "bfloat16" in page.text("#array h2")


def test_an_axis_is_put_on_a_dimension_by_dragging_and_by_keyboard(page: Page) -> None:
    mouse = webdriver.ActionChains(page.driver)
    mouse.drag_and_drop(page.find("[data-drag=model]"), page.find("[data-zone='1']")).perform()
    assert page.find("#spec").get_attribute("value") == "data,model"
    assert "in 8 chunks (4 x 2) of shape (16, 64)" in page.text("#array")
    page.find("[data-row='1'] select").send_keys("dim 0")
    assert page.find("#spec").get_attribute("value") == "(data,model),None"
    assert "chunk number = 2 x data + model" in page.text("#words")
    assert page.driver.switch_to.active_element.tag_name == "select"
    mouse.drag_and_drop(page.find("[data-drag=data]"), page.find("[data-zone='']")).perform()
    assert page.find("#spec").get_attribute("value") == "model,None"


def test_each_devices_slice_is_read_by_pointer_and_by_keyboard(page: Page) -> None:
    for device in range(8):
        page.hover(page.find(f"#mesh [data-device='{device}']"))
        data, place = device // 2, device // 2 // 2 * 16
        said = page.text("#detail")
        assert f"Device {device} of process {device % 4} " in said
        assert f"x[{data * 16}:{data * 16 + 16}, 0:128] of the global array" in said
        assert f"local[{place}:{place + 16}, 0:128]" in said
        assert f"Equal copies on d{device ^ 1} (p{(device ^ 1) % 4})" in said
    page.driver.execute_script("document.querySelector('#mesh .chip').focus()")
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert page.driver.switch_to.active_element.text == "p3 d3"
    assert page.text("#detail").startswith("Device 3 of process 3")
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert "Process 3's local array" in page.text("#local h2")
    assert page.find("#process").get_attribute("value") == "3"


def test_errors_are_pythons(page: Page) -> None:
    topology = hm.Topology.build({"data": 4, "model": 2}, 4, "interleaved")
    for typed, spec in (("datum", ("datum",)), ("data,data", ("data", "data")), ("a,b,c", "abc")):
        with pytest.raises(HostmeshError) as error:
            hm.plan(topology, tuple(spec), global_shape=(64, 128))
        page.type("#spec", typed)
        assert page.error().splitlines() == f"SpecError: {error.value}".splitlines()
        assert not page.find("#panel-layout").is_displayed()
    assert page.find("#error").get_attribute("role") == "alert"
    page.type("#spec", "data")
    page.type("#shape", "63,128")
    assert "its size 63 must be a multiple of 4" in page.error()
    page.type("#shape", "64,128")
    assert page.error() == ""
    assert page.find("#panel-layout").is_displayed()


def test_a_link_holds_the_whole_state(page: Page) -> None:
    page.type("#spec", "P(('data', 'model'))")
    page.choose("#order", "list")
    page.type("#owners", "[0, 1, 2, 3, 3, 2, 1, 0]")
    page.type("#process", "1")
    page.find("#tab-model").click()
    page.type("#rules", "*.weight -> data # 100 % & more")
    page.find("#tab-layout").click()
    link = page.find("#link").get_attribute("value")
    fields = ("processes", "order", "owners", "shape", "dtype", "spec", "process", "to", "rules")

    def values() -> list[str]:
        return [page.find(f"#{name}").get_attribute("value") for name in fields]

    before, cells = values(), [page.cells(figure) for figure in ("mesh", "array", "local")]
    page.driver.get("about:blank")
    page.driver.get(link)
    assert values() == before
    assert [page.cells(figure) for figure in ("mesh", "array", "local")] == cells
    assert page.find("#link").get_attribute("value") == link


def test_holes_are_hatched_and_said(page: Page) -> None:
    page.type("[data-row='0'] [data-part='1']", "2")
    page.type("#processes", "2")
    page.choose("#order", "list")
    page.type("#owners", "[0, 1, 1, 0]")
    page.type("#process", "0")
    page.type("#spec", "data,model")
    assert page.cells("local") == [["p0 d0", "hole"], ["hole", "p0 d3"]]
    assert "2 hatched chunks on none of its devices" in page.text("#local")
    assert "lack 2 chunks" in page.text("#words")


def test_large_meshes_are_abridged(page: Page) -> None:
    page.type("[data-row='0'] [data-part='1']", "1024")
    page.type("[data-row='1'] [data-part='1']", "16")
    page.type("#processes", "2048")
    page.type("#shape", "65536,128")
    page.type("#spec", "(data,model)")
    assert page.error() == ""
    assert "16,384 devices of 2,048 processes" in page.text("#mesh")
    assert "1,017 more" in page.text("#mesh")
    assert len(page.all(".chip")) < 200
    page.type("[data-row='0'] [data-part='1']", "999999")
    assert "it plans up to 65,536" in page.error()


def test_it_is_served_to_this_machine_alone() -> None:
    # Where this run is in the background of a shell, it ignores the signal and so would its children.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from hostmesh._cli import main; main()"
    command = [sys.executable, "-uc", program, "plan", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            url = served.stdout.readline().split()[0]
            assert url.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert b"<title>hostmesh" in answer.read()
            with contextlib.suppress(urllib.error.HTTPError):
                urllib.request.urlopen(url + "etc/passwd", timeout=30)
                pytest.fail("it serves other paths")
            served.send_signal(signal.SIGINT)
            assert served.wait(30) == 0
        finally:
            served.kill()
