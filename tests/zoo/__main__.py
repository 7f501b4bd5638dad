"""Run the steps of the zoo.

    python -m tests.zoo STEP [--only GLOB] [--again GLOB] [--jobs N]

where STEP is make, stock, reference, qnn, bare, tokens, stranger, table or all.

Results are kept below build/zoo, by step and model: what is there is not done again, but for the
models that `--again` names. The table is build/zoo/TABLE.md; docs/zoo.md is a copy of it.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.zoo import building, stranger, table
from tests.zoo.processes import ROOT, python, run

FOLDER = ROOT / "build" / "zoo"
EXPORTERS = ROOT / ".venv-zoo" / "bin" / "python"
"""The environment of requirements.txt; `make zoo` makes it."""
MAKING, JUDGING, SCRIPT = 600, 120, 600
"""Seconds that making a model, a stock session and a bare script have."""


def made(name: str) -> Path:
    """The model called `name`."""
    return FOLDER / "models" / name / "model.onnx"


def make(name: str) -> dict[str, Any]:
    """Write the model called `name`, as its recipe says."""
    folder = made(name).parent
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = python("tests.zoo.make_one", name, str(folder), interpreter=str(_interpreter(name)))
    ended = run(command, MAKING, {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})
    if ended.code != 0:
        made(name).unlink(missing_ok=True)
    return asdict(ended)


@cache
def listed() -> dict[str, tuple[str, bool]]:
    """Each recipe's source, and whether it needs the exporters, by its name."""
    ended = run(python("tests.zoo.list_all"), MAKING)
    if ended.code != 0:
        raise RuntimeError(ended.output)
    rows = (line.split("\t") for line in ended.output.splitlines())
    return {name: (source, needs == "1") for name, source, needs in rows}


def _interpreter(name: str) -> Path:
    return EXPORTERS if listed()[name][1] else Path(sys.executable)


def stock(name: str) -> dict[str, Any] | None:
    """What a stock session does with it."""
    if not made(name).is_file():
        return None
    target = FOLDER / "scratch" / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    ended = run(python("tests.zoo.stock", str(made(name)), str(target)), JUDGING)
    if not target.is_file():
        return {"loads": False, "runs": False, "error": ended.output[-1000:]}
    return dict(json.loads(target.read_text(encoding="utf-8")))


def _built(provider: str) -> Callable[[str], dict[str, Any] | None]:
    def step(name: str) -> dict[str, Any] | None:
        judged = result("stock", name)
        if not judged or not judged["runs"]:
            return None
        folder = FOLDER / provider / name
        shutil.rmtree(folder, ignore_errors=True)
        told = building.build(made(name), provider, judged["sizes"], folder)
        shutil.rmtree(folder)
        return told

    return step


def bare(name: str) -> dict[str, Any] | None:
    """What a script without epctx makes of it with QNN."""
    judged = result("stock", name)
    if not judged or not judged["runs"]:
        return None
    folder = FOLDER / "scripts" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = (made(name), folder / "model_ctx.onnx", folder / "result.json")
    ended = run(python("tests.zoo.bare", *map(str, paths)), SCRIPT)
    told = json.loads(paths[2].read_text(encoding="utf-8")) if paths[2].is_file() else {}
    shutil.rmtree(folder)
    return asdict(ended) | told


def tokens(name: str) -> dict[str, Any] | None:
    """What onnxruntime-genai generates with a folder of its builder, and with what epctx makes."""
    if not made(name).with_name("genai_config.json").is_file():
        return None
    folder = FOLDER / "tokens" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = (made(name).parent, folder, folder / "result.json")
    ended = run(python("tests.zoo.tokens", *map(str, paths)), SCRIPT)
    told = json.loads(paths[2].read_text(encoding="utf-8")) if paths[2].is_file() else {}
    shutil.rmtree(folder)
    return asdict(ended) | told


def strange(name: str) -> dict[str, Any] | None:
    """Build a trained model with what `epctx init` writes; None for models of other sources."""
    if not name.endswith(".wheel") or not made(name).is_file():
        return None
    folder = FOLDER / "stranger" / name
    shutil.rmtree(folder, ignore_errors=True)
    told = stranger.build(made(name), folder)
    shutil.rmtree(folder)
    return told


STEPS: dict[str, Callable[[str], dict[str, Any] | None]] = {
    "make": make,
    "stock": stock,
    "reference": _built("reference"),
    "qnn": _built("qnn"),
    "bare": bare,
    "tokens": tokens,
    "stranger": strange,
}


def result(step: str, name: str) -> dict[str, Any] | None:
    """What is known of a step of a model; None: it was not done."""
    path = FOLDER / "results" / step / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def do(step: str, name: str) -> None:
    """Do a step of a model, and keep its result."""
    told = STEPS[step](name)
    if told is None:
        return
    path = FOLDER / "results" / step / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=2), encoding="utf-8")
    words = {key: told[key] for key in ("code", "runs", "seconds") if key in told}
    print(step, name, words, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Do the steps; the exit code is 1 if the table has a line that must not be."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo")
    parser.add_argument("step", choices=[*STEPS, "table", "all"])
    parser.add_argument("--only", default="*")
    parser.add_argument("--again", default="")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args(arguments)
    names = [name for name in listed() if fnmatch.fnmatch(name, given.only)]
    for step in STEPS if given.step == "all" else [given.step]:
        if step in STEPS:
            todo = [
                name
                for name in names
                if result(step, name) is None or fnmatch.fnmatch(name, given.again)
            ]
            with ThreadPoolExecutor(given.jobs) as pool:
                list(pool.map(partial(do, step), todo))
    lines = [
        table.Line(name, listed()[name][0], *(result(step, name) for step in STEPS))
        for name in names
    ]
    head = Path(__file__).with_name("head.md").read_text(encoding="utf-8")
    written = head + table.write(lines)
    (FOLDER / "TABLE.md").write_text(written, encoding="utf-8")
    print(written)
    return int(any(line.is_wrong for line in lines))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
