"""From the figures of `hostmesh bench` to the page of performance and README's block of figures.

python scripts/performance.py FIGURES.json

`outputs` decides what stands in which file; a test compares it with the files that are there.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hostmesh._bench._plot import in_words, plot
from hostmesh._bench._table import times
from hostmesh._doctor._units import duration, size

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "docs/performance"
FIGURES = f"{FOLDER}/figures.json"
BLOCK = re.compile(
    r"(<!-- figures: scripts/performance -->\n).*?(<!-- /figures -->)", flags=re.DOTALL
)
# README has the claims that most will meet first. What was missed is named there in any case.
FIRST = (
    "leaves_in", "leaves_out", "large_leaf", "small_leaf_in", "barrier", "scalar", "allgather_large",
    "broadcast_large", "feeder_flax", "load_model", "save_model", "import_cost",
)  # fmt: skip
FAR = 2.0  # times a bound, from which on it is said in words
AMISS = 0.9  # of a bound, below which it cannot be one

Claim = dict[str, Any]


def outputs(figures: dict[str, Any], readme: str) -> dict[str, str]:
    """The texts of all files that figures go into, README's among them, by their paths."""
    if len(BLOCK.findall(readme)) != 1:
        raise SystemExit("scripts/performance: README.md has not one block of figures")
    block = "\n".join(_block(figures))
    return {
        FIGURES: json.dumps(figures, indent=1) + "\n",
        "docs/performance.md": "\n".join(_page(figures)) + "\n",
        "README.md": BLOCK.sub(lambda found: f"{found[1]}{block}\n{found[2]}", readme),
        **{f"{FOLDER}/{curve['name']}.svg": plot(curve) for curve in figures["curves"]},
    }


def _page(figures: dict[str, Any]) -> Iterator[str]:
    layout, claims = figures["layout"], figures["claims"]
    yield "# Performance"
    yield ""
    yield "<!-- Made by scripts/performance from performance/figures.json. -->"
    yield ""
    yield f"{_measured(figures)} {_verdicts(claims)}"
    yield ""
    yield f"- Machine: {_machine(figures['machine'])}."
    yield f"- Versions: {', '.join(f'{name} {one}' for name, one in figures['versions'].items())}."
    yield (
        f"- Rounds: {_rounds(claims)}. In a round all contestants are"
        f" called in turns in one group of {layout['processes']} processes with {layout['devices']} CPU"
        " devices each, unless a claim is about another; what comes first warms up and is not counted."
    )
    yield (
        "- Again: `hostmesh bench --curves --json figures.json`, then `scripts/performance"
        " figures.json`. The figures are those of [figures.json](performance/figures.json)."
    )
    yield ""
    yield "## What is claimed"
    yield ""
    yield (
        "A ratio is the time of the peer to that of hostmesh, by medians: above 1 hostmesh is faster."
        " In parentheses are the 10th and the 90th percentile of the rounds' own ratios. The bar is"
        " the least ratio that is claimed; why one is missed is said below the table. A bound is what"
        " no way can do without, such as one copy: how many times that hostmesh takes."
    )
    yield ""
    yield "| | peer | hostmesh | ratio | bar | bound |"
    yield "| --- | --- | ---: | --- | --- | --- |"
    for claim in claims:
        yield _row(claim)
    yield ""
    yield "## Where hostmesh loses, or is far from the bound"
    yield ""
    worse = [f"- `{claim['name']}`: {words}." for claim in claims if (words := _worse(claim))]
    yield from worse or ["Nowhere in this run."]
    if figures["curves"]:
        yield ""
        yield "## How times grow"
        for curve in figures["curves"]:
            yield from _curve(curve)


def _curve(curve: dict[str, Any]) -> Iterator[str]:
    points = [point for point in curve["points"] if point["ours"]]
    yield ""
    yield f"### {curve['title']}"
    yield ""
    if not points:
        yield "Not measured in this run."
        return
    largest = _largest(curve, points[-1])
    yield f"![{curve['title']}: {largest}](performance/{curve['name']}.svg)"
    yield ""
    slower = [in_words(p["x"], curve["x"]) for p in points if p["peer"] and p["ours"] > p["peer"]]
    words = f"With {largest}."
    if any(point["peer"] for point in points):
        words += f" Slower than {curve['peer']}: {', '.join(slower) or 'nowhere'}."
    yield words


def _largest(curve: dict[str, Any], point: dict[str, Any]) -> str:
    names = {"ours": "hostmesh", "peer": curve["peer"], "bound": curve["bound"]}
    takes = [f"{names[s]} {duration(point[s])}" for s in names if point[s]]
    return f"{in_words(point['x'], curve['x'])}: {', '.join(takes)}"


def _block(figures: dict[str, Any]) -> Iterator[str]:
    """What README says of speed."""
    claims = {claim["name"]: claim for claim in figures["claims"]}
    sentences = dict(_whole_sentences(figures["claims"]))
    yield ""
    yield "| | peer | hostmesh | ratio |"
    yield "| --- | --- | ---: | --- |"
    for claim in (claims[name] for name in FIRST if name in claims):
        yield f"| {' | '.join([_cell(sentences[claim['name']]), *_times(claim)])} |"
    yield ""
    yield (
        f"{_measured(figures)} Machine: {_machine(figures['machine'])}. {_verdicts(claims.values())}"
        " [docs/performance.md](docs/performance.md) has all claims, the bounds, and where hostmesh loses."
    )
    yield ""


def _whole_sentences(claims: list[Claim]) -> Iterator[tuple[str, str]]:
    """The sentence of each claim without what stands above it: "the same" is named."""
    subject = ""
    for claim in claims:
        sentence = claim["sentence"]
        if sentence.startswith("the same"):
            sentence = subject + sentence.removeprefix("the same")
        else:
            subject = sentence.partition(",")[0]
        yield claim["name"], sentence


def _row(claim: Claim) -> str:
    what = f"`{claim['name']}`: {claim['sentence']}"
    bounds = ", ".join(
        f"{_ratio(claim['ours']['median'] / bound['median'])} {bound['name']} ({duration(bound['median'])})"
        for bound in claim["bounds"]
    )
    verdict = {True: "holds", False: "**MISSED**", None: "not known"}[claim["holds"]]
    bar = "" if claim["bar"] is None else f"{_ratio(claim['bar'])}: {verdict}"
    return f"| {' | '.join(map(_cell, (what, *_times(claim), bar, bounds)))} |"


def _times(claim: Claim) -> tuple[str, str, str]:
    """The peer and what it takes, what hostmesh takes, and the ratio with its spread."""
    peer, ours = claim["peer"], duration(claim["ours"]["median"])
    if peer is None:
        return "not there", ours, ""
    spread = f"{times(claim['ratio_low'])} to {times(claim['ratio_high'])}"
    ratio = f"{_ratio(claim['ratio'])} ({spread})"
    return f"{peer['name']}: {duration(peer['median'])}", ours, ratio


def _worse(claim: Claim) -> str:
    """In words, what is not as it should be; nothing where all is well."""
    parts: list[str] = []
    if claim["holds"] is False:
        parts.append(
            f"misses its bar, {_ratio(claim['ratio'])} where {_ratio(claim['bar'])} is claimed"
        )
    if claim["ratio"] is not None and claim["ratio"] < 1:
        slower = f"takes {1 / claim['ratio']:.2f} times as long as {claim['peer']['name']}"
        parts.append(f"{slower}, which its bar allows" if claim["holds"] else slower)
    parts += [
        f"is faster than its bound, {bound['name']}, which this run measured amiss"
        for bound in claim["bounds"]
        if claim["ours"]["median"] < AMISS * bound["median"]
    ]
    parts += [
        f"takes {longer:.1f} times as long as its bound, {bound['name']}"
        for bound in claim["bounds"]
        if (longer := claim["ours"]["median"] / bound["median"]) > FAR
    ]
    if claim["why"]:
        parts.append(claim["why"])
    return "; ".join(parts)


def _verdicts(claims: Any) -> str:
    """How many claims hold, and which do not."""
    judged = [claim for claim in claims if claim["holds"] is not None]
    missed = [
        f"`{claim['name']}` ({_ratio(claim['ratio'])} where {_ratio(claim['bar'])} is claimed)"
        for claim in judged
        if not claim["holds"]
    ]
    held = f"Of {len(judged)} claims {len(judged) - len(missed)} hold"
    return f"{held}; missed: {', '.join(missed)}." if missed else f"{held}."


def _measured(figures: dict[str, Any]) -> str:
    return f"Measured by `{figures['measured_by']}` on {figures['date']}."


def _rounds(claims: list[Claim]) -> str:
    least, most = (of((claim["rounds"] for claim in claims), default=0) for of in (min, max))
    return f"{most}" if least == most else f"{least} to {most}, fewer of what takes long"


def _machine(machine: dict[str, Any]) -> str:
    accelerators = ", ".join(machine["accelerators"]) or "no accelerator"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {size(machine['memory_bytes'])} of memory,"
        f" {accelerators}; its load before was {machine['load']:g}"
    )


def _ratio(ratio: float) -> str:
    return f"{times(ratio)}x"


def _cell(words: str) -> str:
    return words.replace("|", r"\|").replace("\n", " ")


def main(path: str) -> None:
    figures = json.loads(Path(path).read_text("utf-8"))
    made = outputs(figures, (ROOT / "README.md").read_text("utf-8"))
    ROOT.joinpath(FOLDER).mkdir(exist_ok=True)
    for old in ROOT.joinpath(FOLDER).glob("*.svg"):
        old.unlink()
    for name, text in made.items():
        ROOT.joinpath(name).write_text(text, "utf-8")
        print(name)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/performance FIGURES.json")
    main(sys.argv[1])
