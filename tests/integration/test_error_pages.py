"""The example of each page that `epctx explain` prints, run in an empty folder, gives that error.

What it prints is in the page; EPCTX_UPDATE_GOLDEN=1 writes it there. In it `…` stands for what
differs from run to run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper
from typer.testing import CliRunner

from epctx.cache import locate
from epctx.cli.app import app
from epctx.commands import explain
from epctx.error_codes import Code
from epctx.keys import Toolchain
from epctx.parsing.schema import apply as schemas
from epctx.providers.onnxruntime import packages
from tests.kit import command_line, signing
from tests.kit.building import mlp
from tests.kit.inline import Inline

PAGES = Path(__file__).parents[2] / "docs" / "errors"
PLUGINS = {
    "FaultyExecutionProvider": command_line.FAULTY,
    "VaryingExecutionProvider": command_line.VARYING,
    "BrokenExecutionProvider": Path("site"),
}
"""EPs that are no part of epctx, and where they are."""
Prepare: TypeAlias = Callable[[pytest.MonkeyPatch], None]
POSIX = pytest.mark.needs("POSIX", "modes and signals")
EXIT_CODES = {13: 130}
RUN = re.compile(
    r"(?<![\w./])(/[\w.+-]+)+|\d+ MiB|(?<=may use )\d+|(?<=used )\d+"
    r"|[0-9a-f]{64}|\d\.\d{4,}(e-\d+)?|\d+\.\d s and \d+\.\d s"
)
"""What differs between runs or hosts: absolute paths, memory, digests, digits of errors, times."""


def save(model: onnx.ModelProto, path: str, *, data: str | None = None) -> None:
    onnx.save(model, path, save_as_external_data=data is not None, location=data, size_threshold=0)


def custom() -> onnx.ModelProto:
    """A model with an operator that nobody has."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    node = helper.make_node("Turbo", ["x"], ["y"], name="turbo", domain="com.example")
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that examples run in: four models."""
    monkeypatch.chdir(tmp_path)
    save(mlp(), "model.onnx")
    save(mlp(), "weights.onnx", data="weights.data")
    dynamic = mlp()
    dynamic.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    save(dynamic, "dynamic.onnx")
    save(custom(), "custom.onnx")
    return tmp_path


def a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "text", lambda name: {}[name])


def an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("epctx.commands.build.run", pressed)


def two_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = dict.fromkeys(["onnxruntime", "onnxruntime-gpu"], "1.31.0")
    monkeypatch.setattr(packages, "onnxruntimes", lambda: versions)


def a_shared_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("shared").mkdir()
    Path("shared").chmod(0o777)


def rot(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte of the largest file of the cache changes."""
    objects = [p for p in locate().folder.glob("*/objects/**/*") if p.is_file()]
    path = max(objects, key=lambda p: p.stat().st_size)
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def on(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An EP depends on what the CPU has."""
    known = Toolchain.provider
    monkeypatch.setattr(
        Toolchain, "provider", lambda self, spec: replace(known(self, spec), host={"isa": isa})
    )


def a_dependent_ep(monkeypatch: pytest.MonkeyPatch) -> None:
    on("avx2", monkeypatch)


def another_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on("avx512", monkeypatch)


def a_broken_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = Path("site/broken/schemas")
    schemas.mkdir(parents=True)
    (schemas / "BrokenExecutionProvider.options.json").write_text("{}", encoding="utf-8")
    (schemas.parent / "__init__.py").touch()
    shutil.copytree(command_line.FAULTY / "epctx_faulty-1.0.dist-info", "site/broken-1.0.dist-info")
    points = "[epctx.execution_providers]\nBrokenExecutionProvider = broken:Provider\n"
    Path("site/broken-1.0.dist-info/entry_points.txt").write_text(points, encoding="utf-8")


def a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    signing.write_key(Path.cwd(), "key")


PREPARED: dict[Code, Prepare] = {
    Code.BUG: a_bug,
    Code.INTERRUPTED: an_interrupt,
    Code.PACKAGES_CLASH: two_packages,
    Code.CACHE_REFUSED: a_shared_folder,
    Code.OTHER_HOST: a_dependent_ep,
    Code.PROVIDER: a_broken_schema,
    Code.SIGNATURE: a_key,
}
"""What an example needs besides models: what the page says in words."""
BEFORE_THE_LAST: dict[Code, Prepare] = {
    Code.CACHE_CORRUPT: rot,
    Code.OTHER_HOST: another_cpu,
}
"""What happens before the last command of an example."""


def blocks(example: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", example, re.DOTALL)


def run(command: str, plugins: Path | None) -> tuple[int, str]:
    """A line of an example, as a shell would: its exit code, and what it prints."""
    words = shlex.split(command)
    variables = {}
    while "=" in words[0]:
        name, _, variables[name] = words.pop(0).partition("=")
    if words[0] == "epctx" and plugins is not None:
        variables["PYTHONPATH"] = str(plugins.absolute())
        ended = command_line.epctx(*words[1:], cwd=Path.cwd(), **variables)
        return ended.returncode, ended.stdout + ended.stderr
    if words[0] == "epctx":
        result = CliRunner(env=variables).invoke(app, words[1:], prog_name="epctx")
        return result.exit_code, result.stdout + result.stderr
    match words:
        case ["mkdir", name]:
            Path(name).mkdir()
        case ["rm", name]:
            Path(name).unlink()
        case ["cp", source, target]:
            shutil.copy(source, target)
        case ["sed", "-i", edit, name]:
            _, old, new, _ = edit.split("/")
            text = Path(name).read_text(encoding="utf-8")
            assert old in text
            Path(name).write_text(text.replace(old, new), encoding="utf-8")
        case ["printf", text, ">" | ">>" as mode, name]:
            with Path(name).open("w" if mode == ">" else "a", encoding="utf-8") as stream:
                stream.write(text)
        case _:
            raise AssertionError(f"an example has the command {command}")
    return 0, ""


def told(printed: str) -> Iterator[str]:
    """The errors in what was printed, without what differs from run to run."""
    inside = remedies = False
    for line in printed.splitlines():
        remedy = line.lstrip().startswith("-> ")
        inside = re.search(r"\[E\d{4}\]", line) is not None or (inside and remedies <= remedy)
        remedies = inside and remedy
        if inside:
            yield RUN.sub("…", line)


def carry_out(code: Code, example: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Run an example: its exit code, and its lines with what they print."""
    for text in blocks(example, "yaml"):
        Path("epctx.yaml").write_text(text, encoding="utf-8")
    plugins = next((place for name, place in PLUGINS.items() if name in example), None)
    (console,) = blocks(example, "console")
    commands = [line for line in console.splitlines() if line.startswith("$ ")]
    ended = 0
    lines: list[str] = []
    for command in commands:
        assert ended == 0, f"{code}: {commands} ends early: {lines}"
        if command is commands[-1] and code in BEFORE_THE_LAST:
            BEFORE_THE_LAST[code](monkeypatch)
        ended, printed = run(command[2:], plugins)
        lines += [command, *told(printed)]
    return ended, lines


def needs(code: Code) -> list[pytest.MarkDecorator]:
    """What a host must have for an example."""
    example = explain.explain(code).example
    runs = "QNNExecutionProvider" in example and "epctx validate" not in example
    marks = [pytest.mark.needs_device("QNNExecutionProvider")] if runs else []
    return [*marks, POSIX] if code in (Code.CACHE_REFUSED, Code.CRASHED) else marks


@pytest.mark.parametrize("code", [pytest.param(code, marks=needs(code)) for code in sorted(Code)])
def test_the_example_of_each_page_gives_its_error(
    code: Code, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = explain.explain(code).example
    if code in PREPARED:
        PREPARED[code](monkeypatch)
    if "QNNExecutionProvider" not in example:  # real EPs have real workers, and plugins
        monkeypatch.setattr("epctx.worker.pool.Worker", Inline)
    ended, lines = carry_out(code, example, monkeypatch)
    assert f"[{code}]" in "\n".join(lines), lines
    number = int(code[1:3])
    assert ended == EXIT_CODES.get(number, number)
    (console,) = blocks(example, "console")
    if os.environ.get("EPCTX_UPDATE_GOLDEN"):
        page = PAGES / f"{code}.md"
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(console, "\n".join(lines) + "\n"), encoding="utf-8")
    else:
        assert lines == console.splitlines()
