"""Hold what epctx builds to checked-in lists: `python -m scripts.baseline`, run by `make soak`.

    python -m scripts.baseline                      build everything, print what differs
    python -m scripts.baseline --only 'examples/*'  build these entries only
    python -m scripts.baseline --write              write what was built into the lists

An entry is a manifest, an example, or one of 60 models of the zoo, on the reference EP and on QNN.
`epctx build --keep-going --no-cache` of the Python that runs this builds each in a copy.
tests/baseline has a fact a line:

- bytes.txt: the SHA-256 of every output but `SHA256SUMS`, of every lock, and of the source of each
  model of the zoo. A lock is taken as parsed YAML, without the keys of its actions (`key` of models
  and sessions, `cut` and `keys` of pieces), epctx's version and the digests of its code (`epctx`
  and `epctx/…` in `toolchain`, `code` of EPs), and facts of the host (`cpus`, `cpu`, `host`).
- verdicts.txt: state, code and coverage of every group, model and finding, without figures.

Not compared, and kept by `--write`: groups whose EP has no device here, and lines of another kind
of host, whose name is in brackets (OpenVINO). Not compared: outputs of a model of the zoo whose
source differs, as another machine's exporter may write it. Left out: outputs that an EP may write
otherwise at each build, as QAIRT does for some weights of 4 bits (`unstable` in the report) and for
the models in `VARYING`.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import itertools
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from epctx import lockfile
from epctx.lockfile import hosts
from scripts import locks, quickstart_models
from tests.kit import examples
from tests.zoo import __main__ as zoo
from tests.zoo import building, processes

LISTS = Path(__file__).parent.parent / "tests" / "baseline"
MODELS, SEED = 60, 0
"""How many models of the zoo are built, and the seed that chooses them."""
NO_DEVICE = "E0502"
VARYING = frozenset(
    f"zoo/{model}/qnn"
    for model in (
        *("canine.dynamo", "clip.dynamo", "clip.script", "mistral.script", "modernbert.dynamo"),
        *("module_rotary_attention.dynamo", "siglip.dynamo", "stablelm.script"),
    )
)
"""Of these onnxruntime-qnn 2.7.0 wrote another context when the same code built them again."""


class Built(NamedTuple):
    """One build, or the source of a model of the zoo.

    Attributes:
        name: the entry; of a build of the zoo with its EP: `zoo/bert.dynamo/qnn`.
        end: in words, how it ended; empty: nothing was built.
        report, lock: empty if there is none.
        digests: SHA-256 of each output by `target/group/file`, or that of a source by `source`.
    """

    name: str
    end: str = ""
    report: Mapping[str, Any] = {}
    lock: Mapping[str, Any] = {}
    digests: Mapping[str, str] = {}


Lists = dict[str, set[str]]
"""Lines of `bytes` and of `verdicts`; `absent`: groups and locks that this host cannot give."""


def entries() -> list[str]:
    """Return the manifests, the examples and the sample of the zoo.

    The sample is ordered by a digest of the name: a new recipe replaces one model at most.
    """
    recipes = sorted(zoo.listed(), key=lambda name: _sha256(f"{SEED} {name}".encode()))
    return [
        *(f"manifests/{path.stem}" for path in locks.manifests()),
        *(f"examples/{path.parent.name}" for path in sorted(examples.ROOT.glob("*/epctx.yaml"))),
        *(f"zoo/{name}" for name in sorted(recipes[:MODELS])),
    ]


def build(name: str, manifest: Path, variables: Mapping[str, str] | None = None) -> Built:
    """Build a manifest where it is, and read what came out."""
    out, lock = manifest.parent / "dist", lockfile.place(manifest)
    options = ["--out", str(out), "--no-cache", "--keep-going"]
    command = processes.python("epctx", "build", str(manifest), *options)
    ended = processes.run(command, building.TIMEOUT, variables)
    report = next(out.glob("*.build.json"), None)
    return Built(
        name,
        f"exit code {ended.code}",
        {} if report is None else json.loads(report.read_text(encoding="utf-8")),
        yaml.safe_load(lock.read_text(encoding="utf-8")) if lock.exists() else {},
        {
            path.relative_to(out).as_posix().partition("/")[2]: _sha256(path.read_bytes())
            for path in out.glob("*/*/*/*")
            if path.is_file() and path.name != "SHA256SUMS"
        },
    )


def build_entry(entry: str) -> list[Built]:
    """Make the models of an entry and build it, in a scratch folder."""
    print(entry, flush=True)
    kind, name = entry.split("/")
    zoo.FOLDER.mkdir(parents=True, exist_ok=True)  # its models are linked, not copied
    with tempfile.TemporaryDirectory(prefix="baseline-", dir=zoo.FOLDER) as scratch:
        folder = Path(scratch, kind)
        if kind == "zoo":
            return list(_build_model(name, folder))
        if kind == "manifests":
            quickstart_models.write(folder / "models")
            manifest = shutil.copyfile(locks.MANIFESTS / f"{name}.yaml", folder / f"{name}.yaml")
            return [build(entry, manifest)]
        variables = examples.variables(name, Path(scratch, "installed"))
        copy = examples.with_models(name, folder, variables)
        return [build(entry, copy / "epctx.yaml", variables)]


def _build_model(name: str, folder: Path) -> Iterator[Built]:
    """Build a model of the zoo on both EPs."""
    for step in ("make", "stock"):
        if zoo.result(step, name) is None:
            zoo.do(step, name)
    files = sorted(path for path in zoo.made(name).parent.rglob("*") if path.is_file())
    digests = "".join(f"{path.name} {_sha256(path.read_bytes())}\n" for path in files)
    yield Built(f"zoo/{name}", digests={"source": _sha256(digests.encode())})
    judged = zoo.result("stock", name)
    if not judged or not judged["runs"]:
        yield Built(f"zoo/{name}", "no stock session runs it")
        return
    for ep in building.PROVIDERS:
        manifest = building.manifest(zoo.made(name), ep, judged["sizes"], folder / ep)
        yield build(f"zoo/{name}/{ep}", manifest)


def lists(every: Sequence[Built]) -> Lists:
    """Return the lines of builds of one host."""
    locked = [each.lock.get("execution_providers", {}) for each in every]
    facts = {ep: each["host"] for eps in locked for ep, each in eps.items() if each["host"]}
    made: Lists = {"bytes": set(), "verdicts": set(), "absent": set()}
    for built in every:
        if built.report:
            _add(made, built, facts)
        elif built.end:
            made["verdicts"].add(f"{built.name} {built.end}")
        else:
            made["bytes"] |= {f"{built.name} {n} {sha}" for n, sha in built.digests.items()}
    return made


def _add(made: Lists, built: Built, facts: hosts.Kind) -> None:
    """Add the lines of a build that wrote a report."""
    lock = json.loads(json.dumps(built.lock))
    for group in built.report["groups"]:
        folder = f"{group['target']}/{group['group']}"
        name, code = f"{built.name}/{folder}", (group["failure"] or {"code": ""})["code"]
        if code == NO_DEVICE:
            made["absent"].update({name, f"{built.name} lock"})
            continue
        kind = _kind(facts, (each["provider"] for each in group["execution_providers"]))
        made["verdicts"].update(f"{name}{kind} {each}" for each in _verdicts(group, code))
        varying = built.name in VARYING or any(model["unstable"] for model in group["models"])
        if not varying:
            own = {f: sha for f, sha in built.digests.items() if f.startswith(f"{folder}/")}
            made["bytes"].update(f"{built.name}/{file}{kind} {sha}" for file, sha in own.items())
        elif lock:
            for session in lock["groups"][folder]["session_groups"].values():
                del session["outputs"]
    if lock:
        kind = _kind(facts, lock["execution_providers"])
        text = json.dumps(_without_keys(lock), sort_keys=True)
        made["bytes"].add(f"{built.name} lock{kind} {_sha256(text.encode())}")


def _verdicts(group: Mapping[str, Any], code: str) -> Iterator[str]:
    """Find what the report says of a group: state, code, coverage, findings."""
    yield f"{group['state']} {code}".rstrip()
    for model in group["models"]:
        placed = model["placement"] or {"context_nodes": 0, "default_nodes": 0}
        counts = f"{placed['context_nodes']} EPContext, {placed['default_nodes']} other nodes"
        yield f"{model['name']} coverage: {model['coverage']} of {model['nodes']}; {counts}"
    for each in (group["verify"] or {"findings": ()})["findings"]:
        yield f"{each['subject']} {each['policy']} {each['check']}: {each['outcome']}"


def _kind(facts: hosts.Kind, eps: Iterable[str]) -> str:
    """Return the name of the kind of host, in brackets; empty if none of the EPs depends on it."""
    kind = {ep: facts[ep] for ep in sorted(eps) if ep in facts}
    return f" [{hosts.name(kind)}]" if kind else ""


def _without_keys(lock: dict[str, Any]) -> dict[str, Any]:
    """Drop from a lock the keys, epctx's version and code, and the facts of the host."""
    lock.pop("cpus", None)
    for name in [name for name in lock["toolchain"] if name.partition("/")[0] == "epctx"]:
        del lock["toolchain"][name]
    for each in lock["execution_providers"].values():
        del each["code"], each["host"]
    for group in lock["groups"].values():
        for each in group["models"].values():
            del each["key"]
        for each in group["session_groups"].values():
            del each["key"], each["cpu"]
        for each in group.get("pieces", {}).values():
            del each["cut"], each["keys"]
    return lock


def compare(stored: Lists, made: Lists, only: str = "*") -> tuple[list[str], Lists]:
    """Return what to tell, - or + before each line that differs, and the lists to write."""
    kinds = {kind for name in stored for line in made[name] for kind in _KIND.findall(line)}
    absent = tuple(f"{name}{end}" for name in made["absent"] for end in "/ ")
    old, new = ({e for e in each["bytes"] if " source " in e} for each in (stored, made))
    others = {_entry(line) for line in new - old} & {_entry(line) for line in old}
    told = [f"no device: {name}" for name in sorted(made["absent"])]
    told += [f"another source, so outputs are not compared: {name}" for name in sorted(others)]
    written: Lists = {}
    for name, lines in stored.items():
        here = {e for e in lines if fnmatch.fnmatch(_entry(e), only) and not e.startswith(absent)}
        here = {e for e in here if kinds.issuperset(_KIND.findall(e))}
        skipped = others if name == "bytes" else ()
        differ = {e for e in here ^ made[name] if _entry(e) not in skipped}
        told += [f"{'-' if line in here else '+'} {line}" for line in sorted(differ)]
        told.append(f"{len(here & made[name])} of {len(made[name])} {name} equal")
        written[name] = (lines - here) | made[name]
    return told, written


_KIND = re.compile(r" \[(host-\w+)\] ")


def _entry(line: str) -> str:
    return "/".join(re.split("[/ ]", line, maxsplit=2)[:2])


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the entries and compare their lines; the exit code is 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", metavar="GLOB", default="*", help="entries, as `zoo/bert.*`")
    parser.add_argument("--write", action="store_true", help="write the lists")
    parser.add_argument("--jobs", type=int, default=2, help="entries at a time")
    given = parser.parse_args(arguments)
    start = time.monotonic()
    names = [name for name in entries() if fnmatch.fnmatch(name, given.only)]
    if not names:
        parser.error(f"no entry is called {given.only}")
    with ThreadPoolExecutor(given.jobs) as pool:
        every = [*itertools.chain(*pool.map(build_entry, names))]
    files = {name: LISTS / f"{name}.txt" for name in ("bytes", "verdicts")}
    stored = {n: set(path.read_text(encoding="utf-8").splitlines()) for n, path in files.items()}
    told, written = compare(stored, lists(every), given.only)
    print("\n".join([*told, f"{len(names)} entries in {time.monotonic() - start:.0f} s"]))
    if given.write:
        for name, path in files.items():
            path.write_text("".join(f"{e}\n" for e in sorted(written[name])), encoding="utf-8")
        return 0
    return int(any(line[0] in "+-" for line in told))


if __name__ == "__main__":
    sys.exit(main())
