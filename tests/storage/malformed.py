"""Malformed files, made anew from their numbers, and what becomes of them in a process of its own.

`python malformed.py 17 230` tries two of them; of each it prints, as JSON, what came out and the
memory that it took. A file is a valid one with a few faults: in what its header says, in the names,
or in its bytes.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import signal
import sys
import tempfile
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import safetensors.numpy
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import hostmesh as hm

COUNT = 300

# What a zarr store may claim without holding it, no machine has.
HUGE = [0, -1, 1, 2**40, 2**41, 2**48, 2**62, 2**63 - 1, 2**63, 2**64, 2**64 + 8, 10**25, -(2**63)]
ODD: list[Any] = [
    None,
    True,
    1.5,
    1e300,
    "",
    "x",
    [],
    {},
    [[]],
    [1, 2],
    {"a": 1},
    "9" * 5000,
    *HUGE,
]
NAMES = [
    *("../x", "/etc/passwd", "a/../../b", "", ".", "..", "\0", "a\0b", "\ud800", "\u202e", "C:\\x"),
    *("x" * 70_000, "__metadata__", "file:///etc/passwd", "{}", "%s%n", "é", "w "),
]
SHAPES: list[Any] = [
    *([2**32, 2**32, 2**32], [2**63, 0], [2**62, 4, 0], [2**63 + 16, 2], [2**64 + 8, 4], [-1]),
    *([-8, -4], [8.0, 4], [True, 32], [32], [], [[8], 4], "84", None, [8, "4"], [0], [1] * 100),
    *([2**40], [2**31, 2**33], [8, 4, 1], [4, 8], [16, 2], [1e3], ["9" * 5000]),
]


def value_of(number: int = 0) -> np.ndarray:
    return np.arange(number, number + 32, dtype=np.float32).reshape(8, 4)


def bytes_spoilt(data: bytes, rng: random.Random, first: int = 400) -> bytes:
    """A few bytes of the first or of all are others, missing, or more."""
    spoilt = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        if not spoilt:
            break
        at = rng.randrange(min(len(spoilt), first) if rng.random() < 0.8 else len(spoilt))
        match rng.randrange(5):
            case 0:
                spoilt[at] = rng.randrange(256)
            case 1:
                del spoilt[at : at + rng.randint(1, 40)]
            case 2:
                spoilt[at:at] = bytes(rng.choices(range(256), k=rng.randint(1, 8)))
            case 3:
                spoilt[at : at + 1] = str(rng.choice(HUGE)).encode()
            case _:
                del spoilt[at:]
    return bytes(spoilt)


def tree_spoilt(tree: Any, rng: random.Random) -> Any:
    """A JSON value with one part of it another, missing, or twice under another name."""
    places: list[tuple[Any, Any]] = []

    def walk(part: Any) -> None:
        for key in part if isinstance(part, dict) else range(len(part)):
            places.append((part, key))
            if isinstance(part[key], dict | list):
                walk(part[key])

    tree = json.loads(json.dumps(tree))
    walk(tree)
    part, key = rng.choice(places)
    match rng.randrange(4):
        case 0 if isinstance(part, dict):
            del part[key]
        case 1 if isinstance(part, dict):
            part[rng.choice(NAMES)] = part.pop(key)
        case 2 if isinstance(part[key], list):
            part[key] = rng.choice(SHAPES)
        case _:
            part[key] = rng.choice([*ODD, *NAMES])
    return tree


def text_spoilt(text: str, rng: random.Random) -> bytes:
    """JSON that is none, or not as it is meant."""
    match rng.randrange(8):
        case 0:
            return ("[" * 50_000 + text).encode()
        case 1:
            return b"\xef\xbb\xbf" + text.encode()
        case 2:
            return text.encode("utf-16")
        case 3:
            return text.replace("[", "[NaN,", 1).encode()
        case 4:
            return (text + rng.choice([" " * 64, "x", "{}", "\0"])).encode()
        case 5:
            return rng.choice([b"", b"null", b"[]", b"7", b'"w"', b"{}", b"\xff" * 8])
        case 6:  # a name twice
            return (text[:-1] + "," + text[1:]).encode()
        case _:
            return text.replace('"', "'").encode()


def words(tree: Any) -> bytes:
    return json.dumps(tree).encode()  # lone surrogates are escaped


# --- safetensors


def safetensors_file(rng: random.Random) -> bytes:
    tensors = {
        "w": value_of(),
        "b": np.arange(4).astype(ml_dtypes.bfloat16),
        "i": np.arange(3),
        "none": np.zeros((0, 5), np.float32),
        "one": np.full((), 7, np.float32),
    }
    data = safetensors.numpy.save(tensors, {"format": "np"})
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    name = rng.choice(list(tensors))
    entry = header[name]
    text: bytes | None = None
    match rng.randrange(12):
        case 0:
            place = rng.randrange(2)
            step = rng.choice([-8, -4, -1, 1, 4, 8, 2**32, 2**63, -(2**63)])
            entry["data_offsets"][place] += step
        case 1:  # over another
            entry["data_offsets"] = list(header[rng.choice(list(tensors))]["data_offsets"])
        case 2:  # a hole
            for other in header.values():
                if "data_offsets" in other and other["data_offsets"][0] >= entry["data_offsets"][0]:
                    other["data_offsets"] = [8 + x for x in other["data_offsets"]]
            rest += bytes(8)
        case 3:
            kinds = ["F64", "U8", "F4", "F6_E2M3", "f32", "I128", "BOOL", "F8_E4M3", "BF16", "C64"]
            entry["dtype"] = rng.choice([*kinds, *ODD])
        case 4:
            entry["shape"] = rng.choice(SHAPES)
        case 5:
            header[rng.choice(NAMES)] = header.pop(name)
        case 6:
            header = tree_spoilt(header, rng)
        case 7:
            text = text_spoilt(json.dumps(header), rng)
        case 8:
            rest = rest[: rng.randrange(len(rest))] if rng.random() < 0.5 else rest + bytes(7)
        case 9:
            text = words(header)
            length = rng.choice([0, 1, len(text) - 1, len(text) + 1, 10**8 + 1, 2**63, 2**64 - 1])
            return length.to_bytes(8, "little") + text + rest
        case 10:
            return data[: rng.randrange(len(data))]
        case _:
            return bytes_spoilt(data, rng)
    text = words(header) if text is None else text
    return len(text).to_bytes(8, "little") + text + rest


def make_safetensors(folder: Path, rng: random.Random) -> Path:
    path = folder / "m.safetensors"
    path.write_bytes(safetensors_file(rng))
    return path


def make_index(folder: Path, rng: random.Random) -> Path:
    inside = folder / "inside"
    (inside / "below").mkdir(parents=True)
    safetensors.numpy.save_file({"secret": value_of(-99)}, folder / "outside.safetensors")
    safetensors.numpy.save_file({"w": value_of()}, inside / "a.safetensors")
    safetensors.numpy.save_file({"b": value_of(1)}, inside / "below/b.safetensors")
    (inside / "loop.safetensors").symlink_to("loop.safetensors")
    (inside / "folder.safetensors").mkdir()
    places: dict[str, Any] = {"w": "a.safetensors", "b": "below/b.safetensors"}
    index: Any = {"metadata": {"total_size": 256}, "weight_map": places}
    path = inside / "m.safetensors.index.json"
    match rng.randrange(6):
        case 0 | 1:
            outside = str(folder / "outside.safetensors")
            found = ["../outside.safetensors", outside, "below/../../outside.safetensors"]
            found += ["..\\outside.safetensors", f"file://{outside}", "./../outside.safetensors"]
            found += ["a.safetensors\0", "", ".", "gone.safetensors", "loop.safetensors", path.name]
            places["secret"] = rng.choice([*found, "folder.safetensors", "a.safetensors", "below"])
        case 2:
            index = tree_spoilt(index, rng)
        case 3:
            path.write_bytes(text_spoilt(json.dumps(index), rng))
            return path
        case 4:
            (inside / "a.safetensors").write_bytes(safetensors_file(rng))
        case _:
            path.write_bytes(bytes_spoilt(words(index), rng))
            return path
    path.write_bytes(words(index))
    return path


# --- NumPy


def npy_file(rng: random.Random) -> bytes:
    out = io.BytesIO()
    value = np.asfortranarray(value_of()) if rng.random() < 0.3 else value_of()
    np.save(out, value)
    data = out.getvalue()
    length = int.from_bytes(data[8:10], "little")
    header, rest = data[10 : 10 + length].decode(), data[10 + length :]
    match rng.randrange(7):
        case 0:
            kinds = ["|O", "<U4", "V8", "<M8[s]", "<f16", "<c32", ">f4", "<f2", "|b1", "<i8", "|S4"]
            kinds += ["<x4", ",f4,f4", "<f4,<f4", "(2,)f4"]
            kind = rng.choice(
                [repr(k) for k in kinds] + ["[('a', '<f4')]", "None", "7", "'<f4'" * 9]
            )
            header = header.replace("'<f4'", kind)
        case 1:
            shape = rng.choice([tuple(s) if isinstance(s, list) else s for s in SHAPES])
            header = header.replace("(8, 4)", repr(shape))
        case 2:
            evil = ["__import__('os').abort()", "(" * 9000, "{**{}}", "9" * 5000, "(8, 4j)", "b''"]
            header = header.replace("(8, 4)", rng.choice([*evil, "(8, 4), 'more': 1", "{8, 4}"]))
        case 3:
            header = header.replace("False", rng.choice(["True", "None", "1", "[]", "'x'", "Fals"]))
        case 4:
            version = rng.choice([b"\1\0", b"\2\0", b"\3\0", b"\7\7", b"\0\0"])
            data = data[:6] + version + data[8:]
            return data if rng.random() < 0.5 else bytes_spoilt(data, rng, 12)
        case 5:
            return data[: rng.randrange(len(data))]
        case _:
            return bytes_spoilt(data, rng, 100)
    text = header.encode()
    return data[:8] + len(text).to_bytes(2, "little") + text + rest


def make_npy(folder: Path, rng: random.Random) -> Path:
    path = folder / "m.npy"
    path.write_bytes(npy_file(rng))
    return path


def make_npz(folder: Path, rng: random.Random) -> Path:
    path = folder / "m.npz"
    kinds = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]
    if rng.random() < 0.2:
        kinds += [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    way = rng.randrange(5)
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name in ("w.npy", "b.npy"):
            if way == 0 and name == "b.npy":
                found = ["../b.npy", "/etc/passwd", "w.npy", "b", "x" * 60_000, "a/b.npy", ".npy"]
                name = rng.choice(found)
            data = io.BytesIO()
            np.save(data, value_of())
            body = npy_file(rng) if way == 1 else data.getvalue()
            archive.writestr(name, body, compress_type=rng.choice(kinds))
    data = bytearray(path.read_bytes())
    directory = data.find(b"PK\1\2")
    if way == 2:  # a number in the directory: sizes, flags, method, place
        at = directory + rng.choice([8, 10, 16, 20, 24, 28, 30, 32, 42])
        data[at : at + 4] = rng.choice([0, 1, 2**31, 2**32 - 1, 2**24, 10**6]).to_bytes(4, "little")
    elif way == 3:
        at = rng.choice([0, directory, data.find(b"PK\5\6")])
        data = data[:at] + bytes_spoilt(bytes(data[at:]), rng, 60)
    elif way == 4:
        data = bytearray(bytes_spoilt(bytes(data), rng))
    path.write_bytes(data)
    return path


# --- zarr


def make_zarr(folder: Path, rng: random.Random) -> Path:
    import zarr

    path = folder / "m.zarr"
    kind = rng.choice([2, 3])
    group: Any = zarr.create_group(path, zarr_format=kind)
    ways: list[Any] = [None, "auto"]
    if kind == 3:
        ways += [zarr.codecs.GzipCodec(), zarr.codecs.BloscCodec()]
    else:
        import numcodecs

        ways.append(numcodecs.Blosc())
    for name in ("w", "in/b"):
        extra = {"shards": (8, 4)} if kind == 3 and rng.random() < 0.3 else {}
        array = group.create_array(
            name, shape=(8, 4), chunks=(4, 2), dtype="f4", compressors=rng.choice(ways), **extra
        )
        array[...] = value_of()
    files = sorted(each for each in path.rglob("*") if each.is_file())
    told = [f for f in files if f.name in ("zarr.json", ".zarray", ".zgroup")]
    chunks = [f for f in files if f.name not in ("zarr.json", ".zarray", ".zgroup", ".zattrs")]
    match rng.randrange(7):
        case 6:
            file = rng.choice([each for each in told if b'"shape"' in each.read_bytes()])
            tree = json.loads(file.read_text())
            tree["shape"][0] = rng.choice([2**40, 2**56, 2**59, 2**61, 0, 7, 9])
            file.write_bytes(words(tree))
        case 0 | 1 | 2:
            file = rng.choice(told)
            file.write_bytes(words(tree_spoilt(json.loads(file.read_text()), rng)))
        case 3:
            file = rng.choice(told)
            text = file.read_text()
            spoil = text_spoilt if rng.random() < 0.5 else lambda t, r: bytes_spoilt(t.encode(), r)
            file.write_bytes(spoil(text, rng))
        case 4:
            file = rng.choice(chunks)
            file.write_bytes(bytes_spoilt(file.read_bytes(), rng, 20))
        case _:
            file = rng.choice(files)
            file.unlink()
            if rng.random() < 0.5:
                file.mkdir()
    return path


# --- what dump_local writes


def make_dump(folder: Path, rng: random.Random) -> Path:
    path = folder / "dump"
    hm.dump_local({"w": value_of(), "k": jax.random.key(3), "b": np.ones(3)}, path)
    (file,) = path.iterdir()
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    match rng.randrange(5):
        case 0 | 1 | 2:
            ((key, told),) = header["__metadata__"].items()
            told = tree_spoilt(json.loads(told), rng)
            header["__metadata__"][key] = words(told).decode()
            text = words(header)
            file.write_bytes(len(text).to_bytes(8, "little") + text + rest)
        case 3:
            file.write_bytes(bytes_spoilt(data, rng, 1200))
        case _:
            names = ["1-of-1", "00001-of-00001", "00000-of-99999999999", "00000-of-00002", "0-of-0"]
            name = file.name.replace("00000-of-00001", rng.choice(names))
            (shutil.copy if rng.random() < 0.3 else shutil.move)(file, path / name)
    return path


MAKERS: list[Callable[[Path, random.Random], Path]] = [
    *(make_safetensors, make_safetensors, make_index, make_npy, make_npz, make_zarr, make_dump)
]


def make(number: int, folder: Path) -> Path:
    """Makes file or folder `number`, always the same."""
    return MAKERS[number % len(MAKERS)](folder, random.Random(number))


def load(path: Path, mesh: Mesh, specs: Any) -> dict[str, Any]:
    """What hostmesh makes of it."""
    if path.name == "dump":
        return hm.load_local(path, mesh)
    if path.suffix == ".zarr":
        found = hm.load_zarr(path, mesh, specs)
    elif path.suffix in (".npy", ".npz"):
        found = hm.load_npy(path, mesh, specs)
    else:
        found = hm.load_safetensors(path, mesh, specs)
    return found if isinstance(found, dict) else {"array": found}


def peers(path: Path) -> dict[str, np.ndarray]:
    """What the package whose format it is makes of it; it may raise whatever it likes."""
    if path.suffix == ".zarr":
        import zarr

        def walk(part: Any, prefix: str) -> dict[str, np.ndarray]:
            if hasattr(part, "shape"):
                return {prefix or "array": part[...]}
            found: dict[str, np.ndarray] = {}
            for name, each in part.members():
                found |= walk(each, f"{prefix}/{name}" if prefix else name)
            return found

        return walk(zarr.open(path, mode="r"), "")
    if path.suffix == ".npy":
        return {"array": np.load(path)}
    if path.suffix == ".npz":
        with np.load(path) as found:
            return {name: found[name] for name in found.files}
    if path.suffix == ".json":
        places = json.loads(path.read_text())["weight_map"]
        files = {name: safetensors.numpy.load_file(path.parent / name) for name in places.values()}
        return {tensor: files[name][tensor] for tensor, name in places.items()}
    return safetensors.numpy.load_file(path)


def resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def compared(path: Path, found: dict[str, Any]) -> str:
    """Whether what was loaded is what is there."""
    if path.name == "dump":
        return "loaded"
    try:
        theirs = peers(path)
    except BaseException as error:
        return f"loaded, and {type(error).__name__} of the format's own package"
    if set(theirs) != set(found):
        return f"WRONG: names {sorted(found)}, not {sorted(theirs)}"
    for name, want in theirs.items():
        with np.errstate(all="ignore"):
            got = np.asarray(found[name])
            want = want.astype(got.dtype)
        if got.shape != want.shape or got.tobytes() != want.tobytes():
            return f"WRONG: {name!r} is {got}, not {want}"
    return "the same"


def tried(number: int, mesh: Mesh) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = make(number, Path(folder))
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
        before = resident("VmRSS")
        if path.suffix != ".zarr":  # which asks for, and does not touch, what a chunk claims
            tracemalloc.start()
        signal.alarm(20)
        words = ""
        try:
            found = load(path, mesh, P())
            outcome = "loaded"
        except hm.HostmeshError as error:
            outcome, words = type(error).__name__, str(error)
        except BaseException as error:
            outcome, words = f"WRONG: {type(error).__name__}", str(error)
        signal.alarm(0)
        peak = max(resident("VmHWM") - before, tracemalloc.get_traced_memory()[1])  # 0 where off
        tracemalloc.stop()
        if outcome == "loaded":
            outcome = compared(path, found)
        return {
            "number": number,
            "file": path.name,
            "outcome": outcome,
            "peak": peak,
            "said": words,
        }


def main() -> None:
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("20 s")))
    mesh = Mesh(jax.devices()[:1], "x")
    for number in map(int, sys.argv[1:]) if len(sys.argv) > 1 else range(COUNT):
        print(json.dumps(tried(number, mesh)), flush=True)


if __name__ == "__main__":
    main()
