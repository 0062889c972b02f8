"""The examples run in four processes, and print what their text says; files for clusters hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent / "examples"
ELSEWHERE = {"minilm": "storage/test_minilm.py", "resume": "test_preemption.py"}
NEEDS = {
    "train": ["sklearn", "grain"],
    "evaluate": ["sklearn"],
    "flax_nnx": ["sklearn", "flax", "optax"],
    "equinox_mlp": ["sklearn", "equinox"],
    "migrate_before": [],
    "migrate_after": [],
}


def printed(name: str, folder: Path) -> list[str]:
    """The lines of an example in 4 processes of 2 devices, in order of their processes."""
    for package in NEEDS[name]:
        pytest.importorskip(package)
    command = [sys.executable, "-m", "hostmesh", "run", "-n", "4", "-d", "2", "--timeout", "200"]
    command.append(str(HERE / f"{name}.py"))
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "Gloo" not in line and line[3:].strip()]
    return sorted(lines)


def found(pattern: str, lines: list[str]) -> list[tuple[str, ...]]:
    """The groups of a pattern in each line that has it."""
    matches = [re.search(pattern, line) for line in lines]
    return [match.groups() for match in matches if match]


def test_each_example_is_tested_and_short() -> None:
    programs = {path.stem: path for path in HERE.glob("*.py")}
    assert programs.keys() == NEEDS.keys() | ELSEWHERE.keys()
    for path in programs.values():
        assert len(path.read_text().splitlines()) < 80
        assert f"hostmesh run -n 4 -d 2 {'--grace 30 ' * (path.stem == 'resume')}examples/" in (
            path.read_text()
        )


def test_train(tmp_path: Path) -> None:
    shares = found(r"(\d+) of (\d+) right", printed("train", tmp_path))
    assert len(shares) == 4
    assert len(set(shares)) == 1
    assert int(shares[0][0]) > 0.9 * int(shares[0][1])


def test_evaluate(tmp_path: Path) -> None:
    """Against the same guesses in NumPy, in one process."""
    lines = printed("evaluate", tmp_path)
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images / 16
    means = np.stack([images[labels == digit].mean(0) for digit in range(10)])
    distances = np.sort(((images[:, None] - means) ** 2).sum(-1), axis=-1)
    right = (((images[:, None] - means) ** 2).sum(-1).argmin(-1) == labels).sum()
    reads = [int(count) for (count,) in found(r"reads (\d+)", lines)]
    assert sum(reads) == len(labels)
    assert len(set(reads)) == 4
    assert found(r"; (\d+) of (\d+) right", lines) == [(str(right), str(len(labels)))] * 4
    ((least, lacking),) = found(r"least sure is example (\d+), (\d+) lack", lines)
    margins = distances[:, 1] - distances[:, 0]
    assert margins[int(least)] == pytest.approx(margins.min(), abs=1e-5)
    assert lacking == "0"


def test_migration_prints_the_same(tmp_path: Path) -> None:
    before, after = printed("migrate_before", tmp_path), printed("migrate_after", tmp_path)
    assert len(found(r"loss .*, 4 processes within", before)) == 4
    assert after == before


def test_flax_nnx(tmp_path: Path) -> None:
    lines = printed("flax_nnx", tmp_path)
    losses = found(r"loss (\S+) over (\d+) examples", lines)
    assert len(losses) == 4
    assert len(set(losses)) == 1
    assert float(losses[0][0]) < 0.5
    assert losses[0][1] == "1797"
    assert any("inner.kernel" in line and "outer.bias" in line for line in lines)


def test_equinox(tmp_path: Path) -> None:
    rows = found(
        r": (\d+) of 1797 right; holds ([\d,]+) of ([\d,]+)", printed("equinox_mlp", tmp_path)
    )
    assert len(rows) == 4
    assert len(set(rows)) == 1
    right, held, whole = (int(number.replace(",", "")) for number in rows[0])
    assert right > 0.8 * 1797
    assert held < whole / 2


def test_slurm_batch_file() -> None:
    path = HERE / "slurm.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True)
    text = path.read_text()
    # sbatch reads options up to the first line that is neither empty nor a comment.
    head = re.split(r"^[^#\n]", text, maxsplit=1, flags=re.MULTILINE)[0]
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", head, re.MULTILINE))
    assert len(options) == text.count("#SBATCH")
    forms = {
        "job-name": r"[\w-]+",
        "nodes": r"\d+",
        "ntasks-per-node": r"\d+",
        "gpus-per-node": r"(\w+:)?\d+",
        "cpus-per-task": r"\d+",
        "time": r"(\d+-)?\d+:\d\d:\d\d",
        "signal": r"(B:)?[A-Z0-9]+@\d+",
        "output": r"[\w%.-]+",
    }
    assert options.keys() == forms.keys()
    for name, value in options.items():
        assert re.fullmatch(forms[name], value), f"--{name}={value}"
    assert not options["signal"].startswith("B:")  # to the steps, which save, and not to bash
    # JAX gives a task the one GPU of its number on the host.
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert re.findall(r"^srun .*?python (\S+)", text, re.MULTILINE) == ["examples/resume.py"]


def test_kubernetes_manifest() -> None:
    yaml = pytest.importorskip("yaml")
    schemas = pytest.importorskip("kubernetes_validate")
    parts = list(yaml.safe_load_all((HERE / "kubernetes.yaml").read_text()))
    for part in parts:
        schemas.validate(part, "1.30", strict=True)
    service, job, account, role, binding, policy = parts
    pod = job["spec"]["template"]["spec"]
    labels = {"job-name": job["metadata"]["name"]}  # which Kubernetes gives each pod of a job
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == labels == policy["spec"]["podSelector"]["matchLabels"]
    assert policy["spec"]["ingress"][0]["from"] == [{"podSelector": {"matchLabels": labels}}]
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert (HERE.parent / container["command"][1]).is_file()
