"""Check the models of a kit on a device without epctx; README.txt explains the use.

The script needs Python 3.9, numpy, onnxruntime and the packages of the execution providers (EPs).
It loads no file of the kit whose SHA-256 is wrong. Models that share a context are loaded together
as a set, each set in a process of its own. A set that crashes or hangs is reported, and the others
are still checked.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KIT = Path(__file__).resolve().parent
SUMS, RECORD = "SHA256SUMS", "kit.json"
SUM = re.compile(r"(?m)^([0-9a-f]{64})  (.+)$")
MODULE, FUNCTION = re.compile(r"onnxruntime_\w+"), re.compile(r"get_\w+_path")
COMMAND = re.compile(
    r"^[^\S\n]*::|##(?:vso|teamcity)?\[|section_(?:start|end):"
    r"|^(?:\x1b\[[\d;]*m)*(?:---|\+\+\+|~~~|\^\^\^)(?:\x1b\[[\d;]*m)*[^\S\n]",
    re.MULTILINE,
)
"""Commands of CI systems, as in epctx's cli/streams.py, which has their sources."""


class Problem(Exception):
    """Reason why models cannot be checked."""


def main() -> int:
    """Check the kit; return the exit code."""
    args = arguments()
    if args.child is not None:
        return run_child(args)
    try:
        damaged = dict(faults())
        if RECORD in damaged:
            raise ValueError(damaged[RECORD])
        results = check_kit(json.loads((KIT / RECORD).read_bytes()), damaged, args)
    except Exception as error:  # a kit may hold anything
        say(f"FAILED: {RECORD}: {error!r}: copy the kit again", sys.stderr)
        return 1
    write(args.out, results)
    failures = [
        (each["model"], problem) for each in results["models"] for problem in each["problems"]
    ]
    failures += [("the kit", problem) for problem in results["problems"]]
    for subject, problem in failures:
        say(f"FAILED: {subject}: {problem}", sys.stderr)
    for each in results["models"]:
        if each.get("runs"):
            times = ", ".join(f"{w} {1e3 * each[w]:.3f} ms" for w in ("first", "median", "p99"))
            say(f"{each['model']}: load {each['load']:.3f} s, {times} ({each['runs']} runs)")
    count = len(results["models"])
    say(f"{'NOT ok' if failures else 'ok'}: {count} model{'s' * (count != 1)}; see {args.out}")
    return int(bool(failures))


def say(line: str, stream: Any = None) -> None:
    """Print a line in which no text of the kit is a command to a CI system or a terminal."""
    shown = "".join(each if each.isprintable() else escaped(each) for each in line)
    shown = COMMAND.sub(lambda match: match[0][:-1] + escaped(match[0][-1]), shown)
    print(shown, file=stream, flush=True)


def escaped(character: str) -> str:
    """Character as an escape of JSON."""
    return f"\\u{ord(character):04x}"


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Check the models of this kit on this device.")
    parser.add_argument(
        "--out", type=Path, default=Path("device.json"), help="file for the results"
    )
    parser.add_argument("--runs", type=int, default=50, help="timed runs of a model")
    parser.add_argument(
        "--seconds", type=float, default=60, help="seconds that the timed runs of a model may take"
    )
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds after which a set of models is stopped"
    )
    parser.add_argument("--expect-driver", help="required version of the device's driver")
    parser.add_argument(
        "--library", action="append", default=[], metavar="EP=PATH", help="path of an EP's library"
    )
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--beside", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.out.absolute().parent.is_dir():
        parser.error(f"the folder {args.out.parent} does not exist")
    return args


def listed() -> dict[str, str]:
    """Files of the kit, with the expected SHA-256 of each."""
    return {name: sha256 for sha256, name in SUM.findall(text(KIT / SUMS))}


def faults() -> Iterator[tuple[str, str]]:
    """Faults of the kit's files, by file name."""
    for name, expected in {RECORD: "", **listed()}.items():
        path = place(name)
        if path is None:
            yield name, "leads out of the kit"
        elif not path.is_file():
            yield name, "is missing"
        elif digest(path) != expected:
            yield name, f"is damaged: its SHA-256 differs from {SUMS}"


def place(name: str) -> Path | None:
    """Path of a file of the kit; None if the name leads out of the kit."""
    path = (KIT / name).resolve()
    return path if KIT in path.parents else None


def text(path: Path) -> str:
    """Text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    hasher = hashlib.sha256()
    with path.open("rb") as stream:
        for piece in iter(lambda: stream.read(1 << 20), b""):
            hasher.update(piece)
    return hasher.hexdigest()


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.write_text(json.dumps(document, indent=1, allow_nan=False), encoding="utf-8")
    beside.replace(path)


def words(error: BaseException) -> str:
    """Error in one line."""
    return " ".join(str(error).split())[:400] or type(error).__name__


def check_kit(
    kit: dict[str, Any], damaged: dict[str, str], args: argparse.Namespace
) -> dict[str, Any]:
    """Results: the host, its versions, and the findings for each model."""
    results = about(kit, args)
    for number, kit_set in enumerate(kit["sets"]):
        say(f"checking {', '.join(model['name'] for model in kit_set['models'])}")
        result = check_set(number, kit_set, damaged, args)
        results["devices"] += [d for d in result["devices"] if d not in results["devices"]]
        results["models"] += result["models"]
    model_files = {name for kit_set in kit["sets"] for name in needed(kit_set)}
    results["problems"] = [
        f"{n} {why}" for n, why in sorted(damaged.items()) if n not in model_files
    ]
    results["problems"] += wrong_drivers(results)
    return results


def about(kit: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Results before any model is checked."""
    packages = {"numpy", "onnxruntime", *kit["built_with"]}
    packages |= {ep.get("package", "") for kit_set in kit["sets"] for ep in kit_set["eps"]}
    cpu = re.search(r"(?m)^(?:model name|Hardware)\s*:\s*(.+)$", text(Path("/proc/cpuinfo")))
    return {
        "version": 1,
        "kit": digest(KIT / RECORD),
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "machine": platform.machine(),
            "cpu": cpu[1] if cpu else platform.processor(),
            "python": platform.python_version(),
        },
        "packages": {name: installed for name in sorted(packages) if (installed := version(name))},
        "built_with": kit["built_with"],
        "expect_driver": args.expect_driver or kit.get("expect_driver"),
        "devices": [],
        "models": [],
    }


def version(package: str) -> str | None:
    """Version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def wrong_drivers(results: dict[str, Any]) -> Iterator[str]:
    """Devices whose driver is not the expected one, in words."""
    expected = results["expect_driver"]
    for each in results["devices"] if expected is not None else ():
        if expected not in each["drivers"].values():
            versions = ", ".join(f"{k} {v}" for k, v in each["drivers"].items()) or "unknown"
            yield f"the driver of {each['ep']} is {versions}, but it should be {expected}"
    if expected is not None and not results["devices"]:
        yield f"no device reports a driver; it should be {expected}"


def check_set(
    number: int, kit_set: dict[str, Any], damaged: dict[str, str], args: argparse.Namespace
) -> dict[str, Any]:
    """Check models that are loaded together, in a separate process."""
    models: list[dict[str, Any]] = [
        {"model": m["name"], "sdk": m["sdk"], "files": {}, "problems": [], "done": False}
        for m in kit_set["models"]
    ]
    results: dict[str, Any] = {"devices": [], "models": models}
    sums = listed()
    bad = [name for name in needed(kit_set) if name in damaged or name not in sums]
    if bad:
        whys = (f"{name} {damaged.get(name, f'is not in {SUMS}')}" for name in bad)
        return failing(results, f"not loaded: {'; '.join(whys)}")
    if kit_set.get("why_not"):
        return failing(results, f"not loaded: {kit_set['why_not']}")
    for position, model in enumerate(kit_set["models"]):
        start = len(model["file"].rpartition("/")[0]) + 1
        models[position]["files"] = {name[start:]: sums[name] for name in model["files"]}
    with tempfile.TemporaryDirectory(prefix="check-device-") as folder:
        result, log = Path(folder, "result.json"), Path(folder, "log.txt")
        write(result, {**results, "doing": "starting"})
        problem = in_process(number, args, result, log)
        results = json.loads(result.read_bytes())
        doing = results.pop("doing", "it ended")
        if problem is not None:
            lines = [line.strip() for line in text(log).splitlines() if line.strip()]
            failing(results, f"{problem} while {doing}{f': {lines[-1][:300]}' if lines else ''}")
    return results


def needed(kit_set: dict[str, Any]) -> list[str]:
    """Files that the models of a set need."""
    names = [n for model in kit_set["models"] for n in (*model["files"], model["golden"])]
    return list(dict.fromkeys(names))


def failing(results: dict[str, Any], problem: str) -> dict[str, Any]:
    """Add the problem to every model that was not finished, or to the last one if all were."""
    for each in [m for m in results["models"] if not m["done"]] or results["models"][-1:]:
        each["problems"].append(problem)
    return results


def in_process(number: int, args: argparse.Namespace, result: Path, log: Path) -> str | None:
    """Check a set in a separate process; return why the process failed, or None."""
    isolated = ["-I"] if sys.flags.isolated else []
    command = [sys.executable, *isolated, str(KIT / Path(__file__).name), "--child", str(number)]
    command += ["--out", str(result), "--beside", str(args.out.resolve())]
    command += ["--runs", str(args.runs), "--seconds", str(args.seconds)]
    command += [f"--library={each}" for each in args.library]
    with log.open("wb") as stream:
        try:
            ended = subprocess.run(
                command,
                env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"},
                cwd=result.parent,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=args.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it did not end within {args.timeout:g} s"
    code = ended.returncode
    ending = f"signal {-code}" if code < 0 else f"exit code {code:#x}"
    return None if code == 0 else f"its process ended with {ending}"


def run_child(args: argparse.Namespace) -> int:
    """Check a set in this process; save the results after each step."""
    kit_set = json.loads((KIT / RECORD).read_bytes())["sets"][args.child]
    results = json.loads(args.out.read_bytes())
    try:
        Checking(kit_set, results, args).run()
    except Problem as problem:
        failing(results, str(problem))
    results.pop("doing", None)
    write(args.out, results)
    return 0


class Checking:
    """One set of models, loaded together. Exceptions of onnxruntime have no common base class."""

    def __init__(
        self, kit_set: dict[str, Any], results: dict[str, Any], args: argparse.Namespace
    ) -> None:
        self.set = kit_set
        self.results = results
        self.args = args
        self.np = imported("numpy", "numpy")
        self.ort = imported("onnxruntime", "onnxruntime")

    def run(self) -> None:
        """Load all models, run each on its golden inputs, and time it."""
        devices = [(ep, self.device(ep)) for ep in self.set["eps"]]
        self.results["devices"] = [describe(device) for _, device in devices]
        sessions = []
        for number, model in enumerate(self.set["models"]):
            result = self.results["models"][number]
            result["compatibility"] = dict(self.compatibility(model, devices))
            self.doing(f"loading {model['name']}")
            start = time.perf_counter()
            try:
                sessions.append(self.session(model, devices))
            except Exception as error:
                raise Problem(f"{model['name']} cannot be loaded: {words(error)}") from error
            result["load"] = time.perf_counter() - start
        for number, model in enumerate(self.set["models"]):
            result = self.results["models"][number]
            self.doing(f"running {model['name']}")
            try:
                self.check(model, result, sessions[number])
            except Exception as error:
                result["problems"].append(f"does not run: {words(error)}")
            result["done"] = True
        while sessions:  # sessions that share a context are closed in reverse order
            sessions.pop()

    def doing(self, what: str) -> None:
        """Save results and the next step, before native code that may end the process."""
        write(self.args.out, {**self.results, "doing": what})

    def device(self, ep: dict[str, Any]) -> Any:
        """Return the device for an EP's models, after registering the EP's library."""
        name = ep["ep"]
        self.doing(f"looking for devices of {name}")
        if ep.get("registration") is not None:
            library = self.library(ep)
            try:
                self.ort.register_execution_provider_library(ep["registration"], library)
            except Exception as error:
                raise Problem(
                    f"the library of {name} cannot be registered: {words(error)}"
                ) from error
        every = [each for each in self.ort.get_ep_devices() if each.ep_name == name]
        kinds = [each.device.type.name for each in every]
        for kind in ep.get("kinds") or kinds:
            for each in every:
                fits = ep.get("metadata", {}).items() <= dict(each.ep_metadata).items()
                if fits and each.device.type.name == kind:
                    return each
        kinds_wanted, kinds_here = (
            " or ".join(ep.get("kinds", ["device"])),
            ", ".join(kinds) or "nothing",
        )
        raise Problem(
            f"{name} needs a device {kinds_wanted} for these models, and has {kinds_here} here"
        )

    def library(self, ep: dict[str, Any]) -> str:
        """Path of an EP's library."""
        paths = dict(each.partition("=")[::2] for each in self.args.library)
        path: str | None = paths.get(ep["ep"])
        if path is None and ep.get("module") is None:
            raise Problem(f"the library of {ep['ep']} is unknown: give --library {ep['ep']}=PATH")
        return path or path_from(ep, ep.get("library", "get_library_path"))

    def session(self, model: dict[str, Any], devices: list[Any]) -> Any:
        """Create a session on these devices only."""
        options = self.ort.SessionOptions()
        options.log_severity_level = 3
        if self.set["share"]:
            options.add_session_config_entry("ep.share_ep_contexts", "1")
        for ep, device in devices:
            own = {key: path_from(ep, name) for key, name in ep.get("paths", {}).items()}
            options.add_provider_for_devices([device], {**own, **ep.get("options", {})})
        alone = {} if devices else {"providers": ["CPUExecutionProvider"]}
        path = str(place(model["file"]))
        return self.ort.InferenceSession(path, options, enable_fallback=0, **alone)

    def compatibility(self, model: dict[str, Any], devices: list[Any]) -> Iterator[tuple[str, str]]:
        """Compatibility of the model with each device, as ONNX Runtime judges it."""
        native = importlib.import_module("onnxruntime.capi._pybind_state")
        ask = getattr(native, "get_model_compatibility_for_ep_devices", None)
        for ep, device in devices:
            info = model["compatibility"].get(ep["ep"])
            if info is not None and ask is not None:
                try:
                    yield ep["ep"], ask([device], info).name
                except Exception as error:
                    yield ep["ep"], f"cannot tell: {words(error)}"

    def check(self, model: dict[str, Any], result: dict[str, Any], session: Any) -> None:
        """Run the golden inputs, save and compare the outputs, and measure times."""
        names = [output.name for output in session.get_outputs()]
        inputs = {each.name for each in session.get_inputs()}
        outputs: dict[str, Any] = {}
        every, times, sets = [], [], []
        rows = result["numbers"] = []
        with self.np.load(place(model["golden"]), allow_pickle=False) as golden:
            for number, each in enumerate(model["sets"]):
                input_names = [name for name in each["inputs"] if name in inputs]
                every.append(
                    {name: values(golden[f"{number}/inputs/{name}"]) for name in input_names}
                )
                start = time.perf_counter()
                arrays = session.run(names, every[-1])
                times.append(time.perf_counter() - start)
                by_name = dict(self.flat(names, arrays))
                sets.append({"label": each["label"], "outputs": list(by_name)})
                for name, array in by_name.items():
                    plain = array.astype(str) if array.dtype.kind == "O" else array
                    outputs[f"{number}/outputs/{name}"] = plain
                for name in each["outputs"]:
                    expected = values(golden[f"{number}/outputs/{name}"])
                    row = self.compare(
                        expected, by_name.get(name), model["tolerances"].get(name, {})
                    )
                    rows.append({"set": each["label"], "output": name, **row})
        result["problems"] += [
            f"{row['set']}: output {row['output']}: {row['problem']}"
            for row in rows
            if row["problem"]
        ]
        path = self.args.beside
        path = path.with_name(f"{path.stem}.{model['name'].replace('/', '.')}.npz")
        self.np.savez(path, **outputs)
        result.update(
            sets=sets,
            outputs=path.name,
            sha256=digest(path),
            first=times[0],
            **self.times(session, names, every[0]),
        )

    def flat(self, names: list[str], arrays: list[Any]) -> Iterator[tuple[str, Any]]:
        """Yield outputs by name; tensors of a sequence as `name[0]`, an empty one as `name[]`."""
        for number, value in enumerate(arrays):
            name = names[number]
            if not isinstance(value, list):
                yield name, self.np.asarray(value)
            elif not value:
                yield f"{name}[]", self.np.zeros(0, self.np.float32)
            else:
                yield from ((f"{name}[{n}]", self.np.asarray(v)) for n, v in enumerate(value))

    def times(self, session: Any, names: list[str], feeds: Any) -> dict[str, Any]:
        """Run the model repeatedly; return the number of runs, median and 99th percentile."""
        times: list[float] = []
        end = time.perf_counter() + self.args.seconds
        while not times or (len(times) < self.args.runs and time.perf_counter() < end):
            start = time.perf_counter()
            session.run(names, feeds)
            times.append(time.perf_counter() - start)
        median, p99 = map(float, self.np.percentile(times, (50, 99)))
        return {"runs": len(times), "median": median, "p99": p99}

    def compare(self, expected: Any, actual: Any, limits: dict[str, float]) -> dict[str, Any]:
        """Measure an output's error; `epctx verify --device-results` compares in more detail."""
        np = self.np
        if actual is None:
            return {"problem": "it is missing"}
        if (expected.dtype, expected.shape) != (actual.dtype, actual.shape):
            what = f"{actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
            return {"problem": f"it is {what}"}
        if expected.dtype.kind not in "fiu":
            return {"problem": None if (expected == actual).all() else "it is not equal"}
        x, y = expected.astype(np.float64).ravel(), actual.astype(np.float64).ravel()
        if limits.get("saturates_at"):
            x, y = (np.clip(a, -limits["saturates_at"], limits["saturates_at"]) for a in (x, y))
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        finite = np.isfinite(x) & np.isfinite(y)
        if not (same | finite).all():
            return {"problem": "NaN or infinities on one side only"}
        equal = bool(same.all()) and (
            expected.dtype.kind == "f" or bool((expected == actual).all())
        )
        x, y = x[finite], y[finite]
        y = np.where(np.abs(x - y) <= (limits.get("floor") or -1.0), x, y)
        if expected.dtype.kind == "f" and x.any() and not y.any():
            return {"problem": "it is zero throughout, and should not be"}
        error, scale = (float(np.abs(a).max(initial=0)) for a in (x - y, x))
        p, q = x / (scale or 1), y / (float(np.abs(y).max(initial=0)) or 1)
        norms = np.linalg.norm(p) * np.linalg.norm(q)
        row = {
            "cosine": float(p @ q / norms) if norms else None,
            "max_abs": error,
            "max_rel": error / scale if scale else None,
            "gain_max": abs(float(p @ (y / scale) / (p @ p)) - 1) if scale else None,
        }
        return {"problem": None if equal else excess(row, limits), **row}


def excess(row: dict[str, Any], limits: dict[str, float]) -> str | None:
    """Limits that an output exceeds, if it is not equal."""
    measured = {key: row[key] for key in ("max_abs", "max_rel")}
    measured |= {"cosine_min": row["cosine"], "gain_max": row["gain_max"]}
    checked = {key: limits[key] for key in measured if None not in (measured[key], limits.get(key))}
    over = [
        f"{key} {measured[key]:.6g} (allowed: {limit:g})"
        for key, limit in checked.items()
        if (measured[key] < limit if key == "cosine_min" else measured[key] > limit)
    ]
    if not checked or (row["max_rel"] is None and limits.get("max_rel") is not None):
        over.append("it is not equal")
    return f"wrong numbers: {', '.join(over)}" if over else None


def imported(module: str, package: str) -> Any:
    """Import a module; the error names the package that contains it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Problem(f"{words(error)}: run `pip install {package}`") from error


def path_from(ep: dict[str, Any], function: str) -> str:
    """Path from a function of the EP's package; no other function of a module is called."""
    module = ep["module"]
    if not MODULE.fullmatch(module) or not FUNCTION.fullmatch(function):
        raise Problem(f"{RECORD} names {module}.{function}, which is not a function of an EP")
    getter = getattr(imported(module, ep["package"]), function, None)
    if getter is None:
        raise Problem(f"{module} has no {function}: give --library {ep['ep']}=PATH")
    return str(getter())


def describe(device: Any) -> dict[str, Any]:
    """Device in the form that the results use."""
    metadata = {**dict(device.device.metadata), **dict(device.ep_metadata)}
    metadata.pop("library_path", None)
    return {
        "ep": device.ep_name,
        "kind": device.device.type.name,
        "vendor": device.device.vendor,
        "drivers": {key: value for key, value in metadata.items() if "driver" in key.lower()},
        "metadata": metadata,
    }


def values(array: Any) -> Any:
    """Array of a golden file in the form that onnxruntime takes."""
    if array.dtype.kind == "V":
        raise Problem("bfloat16 and float8 values need epctx")
    return array.astype(object) if array.dtype.kind == "U" else array


if __name__ == "__main__":
    sys.exit(main())
