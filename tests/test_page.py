"""The page in a real Chromium: what a reader does with it, and that nothing leaves it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import hostmesh as hm
from hostmesh import _cli
from hostmesh._errors import HostmeshError

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.keys import Keys  # noqa: E402

import browser_page  # noqa: E402
from browser_page import Page  # noqa: E402

BASE = ["plan", "--mesh", "data=4,model=2", "--processes", "4", "--order", "interleaved"]
BASE += ["--shape", "64,128", "--process", "2"]


def write_page(path: Path, spec: str) -> str:
    result = CliRunner().invoke(_cli.main, [*BASE, "--spec", spec, "--html", str(path)])
    assert result.exit_code == 0, result.output
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium and its driver from PATH, never a download of them."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        if os.environ.get("CI"):
            pytest.fail("chromium and chromium-driver are needed in CI")
        pytest.skip("no chromium, or no chromedriver, on PATH")
    driver = browser_page.start(*programs)
    try:
        yield driver
    finally:
        driver.quit()


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


def model_file(path: Path) -> dict[str, tuple[int, ...]]:
    from safetensors.numpy import save_file

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
