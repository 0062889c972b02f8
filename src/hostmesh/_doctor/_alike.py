"""What should be equal on all processes and is not. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Hashable, Iterable, Sequence

from .._verdict import groups
from . import _secrets
from ._facts import Facts
from ._finding import Finding, Severity, grouped, outside_largest

_SHOWN = 12  # variables that get a finding each
_LONGEST = 60  # characters of a value that are shown

# Versions that only warn when they differ.
_MILD = ("numpy", "ml_dtypes")
# What launchers, shells and this program give each process for itself.
_OWN = (
    *(
        "HOSTMESH_PROCESS",
        "HOSTMESH_DEVICES",
        "HOSTMESH_COORDINATOR",
        "JAX_NUM_CPU_DEVICES",
        "JAX_PROCESS_ID",
    ),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID"),
    *("SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR", "SLURM_CPUS_ON_NODE", "SLURM_STEP_GPUS"),
    *("SLURM_SRUN_COMM_*", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_CPU_BIND*", "SLURM_MEM_BIND*"),
    *("SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *(
        "OMPI_COMM_WORLD_*RANK",
        "OMPI_*_RANK",
        "OMPI_FILE_LOCATION",
        "PMIX_*",
        "PMI_*",
        "OMPI_MCA_*",
    ),
    *("TPU_WORKER_ID", "TPU_PROCESS_PORT", "CLOUD_TPU_TASK_ID", "TPU_VISIBLE_*", "TPU_CHIPS_*"),
    *("JOB_COMPLETION_INDEX", "POD_*", "MY_POD_*", "HOST", "HOSTNAME", "HOST_IP", "NODE_NAME"),
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "*_RANK", "CUDA_VISIBLE_DEVICES"),
    *("SSH_*", "XDG_SESSION_ID", "XDG_RUNTIME_DIR", "TERM*", "COLUMNS", "LINES", "WINDOWID"),
    *("DISPLAY", "DBUS_*", "SHLVL", "_", "OLDPWD", "PS1", "INVOCATION_ID", "JOURNAL_STREAM"),
    *("STY", "TMUX*", "LS_COLORS", "PPID", "*_PID", "TMPDIR", "PYTEST_*", "SYSTEMD_EXEC_PID"),
)


def findings(facts: Sequence[Facts], ignore: Iterable[str] = ()) -> list[Finding]:
    """Versions, devices, settings, flags and environments that differ."""
    return [
        *_versions(facts),
        *_settings(facts),
        *_flags(facts),
        *_environment(facts, ignore),
        *_devices(facts),
    ]


def _differing(
    facts: Sequence[Facts],
    value: Callable[[Facts], Hashable],
    severity: Severity,
    what: str,
    remedy: str,
) -> list[Finding]:
    values = {of.process: value(of) for of in facts}
    if len(set(values.values())) < 2:
        return []
    return [Finding(severity, outside_largest(values), f"{what}: {grouped(values)}", remedy)]


def _versions(facts: Sequence[Facts]) -> list[Finding]:
    found: list[Finding] = []
    for name in dict.fromkeys(name for of in facts for name in of.versions):
        versions = {of.process: of.versions.get(name, "not installed") for of in facts}
        mild = name in _MILD or (
            name == "python" and len({v.rpartition(".")[0] for v in versions.values()}) == 1
        )
        most = next(iter(groups(versions)))
        found += _differing(
            facts,
            lambda of, name=name: of.versions.get(name, "not installed"),
            "warning" if mild else "error",
            f"the version of {name} differs",
            f"install {name} {most} everywhere, or start all processes in one environment"
            if name != "python"
            else f"start all processes with Python {most}",
        )
    return found


def _settings(facts: Sequence[Facts]) -> list[Finding]:
    found: list[Finding] = []
    for name in dict.fromkeys(name for of in facts for name in of.settings):
        cache = name == "jax_compilation_cache_dir"
        found += _differing(
            facts,
            lambda of, name=name: of.settings.get(name, "not there"),
            "warning" if cache else "error",
            f"JAX's setting {name} differs",
            f"give it the same value everywhere: the variable {name.upper()}, or jax.config.update",
        )
    return found


def _flags(facts: Sequence[Facts]) -> list[Finding]:
    """XLA's flags: those that not all have, in any order."""
    found: list[Finding] = []
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        flags = {of.process: set(of.environment.get(name, "").split()) for of in facts}
        common = set[str].intersection(*flags.values())
        rest = {p: " ".join(sorted(of - common)) or "without" for p, of in flags.items()}
        found += _differing(
            facts,
            lambda of, rest=rest: rest[of.process],
            "error",
            f"{name} differs" + f", beside {len(common)} that all have" * bool(common),
            f"give all processes the same {name}: programs that are compiled differently may wait"
            " for each other for ever",
        )
    return found


def _environment(facts: Sequence[Facts], ignore: Iterable[str]) -> list[Finding]:
    own = (*_OWN, "XLA_FLAGS", "LIBTPU_INIT_ARGS", *ignore)
    names = sorted({name for of in facts for name in of.environment})
    differing = [
        name
        for name in names
        if len({of.environment.get(name) for of in facts}) > 1
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in own)
    ]
    found: list[Finding] = []
    for name in differing[:_SHOWN]:
        values = {of.process: of.environment.get(name) for of in facts}
        told = {value: _cut(_secrets.shown(value)) for value in groups(values)}
        twins = [value for value in told if list(told.values()).count(told[value]) > 1]
        told |= {value: f"{told[value]} #{n}" for n, value in enumerate(twins, 1)}
        shown = {process: told[value] for process, value in values.items()}
        found.append(
            Finding(
                "warning",
                outside_largest(values),
                f"the variable {name} differs: {grouped(shown)}",
                f"set {name} alike in all processes; or if that is meant, --ignore {name}",
            )
        )
    if rest := differing[_SHOWN:]:
        listed = ", ".join(rest[:_SHOWN]) + ", ..." * (len(rest) > _SHOWN)
        found.append(
            Finding(
                "warning",
                (),
                f"{len(rest)} more variables of the environment differ: {listed}",
                "start all processes with one environment, or leave some out with --ignore",
            )
        )
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _devices(facts: Sequence[Facts]) -> list[Finding]:
    return [
        *_differing(
            facts,
            lambda of: of.platform,
            "error",
            "JAX's default backend differs",
            "see why JAX found no accelerator on some (its warnings at start), or set"
            " JAX_PLATFORMS alike",
        ),
        *_differing(
            facts,
            lambda of: of.local_devices,
            "warning",
            "the number of local devices differs",
            "give each process as many devices, or build meshes of as many from each: most meshes"
            " of all devices have no even share then",
        ),
        *_differing(
            facts,
            lambda of: ", ".join(of.kinds),
            "warning",
            "the kind of device differs",
            "use hosts with one kind of device: the slowest sets the pace of all",
        ),
        *_differing(
            facts,
            lambda of: f"{of.memory_each / 2**30:.0f} GiB" if of.memory_each else "not told",
            "warning",
            "the memory of a device differs",
            "see what else uses the devices, and XLA_PYTHON_CLIENT_MEM_FRACTION",
        ),
    ]
