"""QNN's flexible context binary: one file for several chips (onnxruntime-qnn 2.7.0, x86-64).

No session runs such a file here, so its numbers are those of builds for each chip alone, and what
it holds for each is compared with them. The model has a node that QNN leaves to the CPU, which cuts
it into two graphs.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import onnx
import onnx_ir as ir
import pytest

from epctx import api, runtime
from epctx.commands.inspect.inspection import BinaryFile
from epctx.engine.report import BuildReport
from epctx.errors import EpctxError
from epctx.graph import epcontext
from epctx.providers import registry
from epctx.providers.onnxruntime.qnn import dlc
from epctx.providers.onnxruntime.qnn.provider import QNNExecutionProvider
from tests.kit import real_ep
from tests.kit import real_models as models
from tests.kit.projects import Project

pytestmark = pytest.mark.needs("module onnxruntime_qnn")
QNN = "QNNExecutionProvider"
CHIPS = {60: "SoC 60 (sc8380xp, v73)", 57: "SoC 57 (sm8650, v75)", 69: "SoC 69 (sm8750, v79)"}
EPOCH = b"1980-01-01 00:00:00 UTC"


def project(folder: Path, chips: object, **settings: object) -> Project:
    folder.mkdir(parents=True)
    models.save(folder / "a.onnx", models.mlp(layers=3, width=64, middle="Sinh"))
    return Project(
        folder=folder,
        document={
            "schema_version": 1,
            "name": "m",
            "models": {"a": {"path": "a.onnx"}},
            "execution_providers": {"htp": {"provider": QNN, "options": {"soc_model": chips}}},
            "model_groups": {"g": {"models": ["a"], "execution_providers": ["htp"], **settings}},
        },
    )


def refused(made: Project) -> str:
    with pytest.raises(EpctxError) as caught:
        made.build()
    return str(caught.value)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, BuildReport]:
    """Three chips, in three spellings."""
    made = project(tmp_path_factory.mktemp("flexible") / "p", ["sc8380xp", 57, "69"])
    return made, made.build()


def of(built: tuple[Project, BuildReport], name: str) -> Path:
    return built[0].published / "g" / name


def test_one_file_has_each_chip_and_the_weights_once(built: tuple[Project, BuildReport]) -> None:
    assert sorted(path.name for path in of(built, "").iterdir()) == [
        *("SHA256SUMS", "a_ctx.onnx", "a_qnn.bin")
    ]
    model = onnx.load(of(built, "a_ctx.onnx"))
    nodes = epcontext.read_all(model)
    assert [node.context_path for node in nodes] == ["a_qnn.bin", None]
    assert all(node.unknown["is_multi_soc_ep_context"] == 1 for node in nodes)
    assert [node.op_type for node in model.graph.node].count("Sinh") == 1
    found = api.inspect(of(built, "a_qnn.bin")).binary
    assert found is not None
    assert_told(found)
    inside = api.inspect(of(built, "a_ctx.onnx")).model
    assert inside is not None
    assert inside.compatibility[QNN].split(":")[5] == "60,57,69"
    assert inside.binaries == (found,)


def assert_told(binary: BinaryFile) -> None:
    info = binary.info
    assert info is not None
    assert "flexible" in info.kind
    caches = {name: words for name, words in info.properties.items() if name.startswith("SoC ")}
    assert sorted(caches) == sorted(CHIPS.values())
    assert all(re.fullmatch(r"[0-9,]+ bytes", words) for words in caches.values())
    sizes = [int(words.removesuffix(" bytes").replace(",", "")) for words in caches.values()]
    assert info.stored is not None
    assert 3 * 64 * 64 * 2 <= info.stored < 3 * 2 * 3 * 64 * 64, "float16, for all chips once"
    assert sum(sizes) + info.stored <= binary.size
    places = [(graph.properties["SoC"], [t.name for t in graph.outputs]) for graph in info.graphs]
    assert sorted(places) == sorted(
        (f"{chip}", outputs)
        for chip in (words.removeprefix("SoC ") for words in CHIPS.values())
        for outputs in (info_outputs(info.graphs[0].outputs), info_outputs(info.graphs[1].outputs))
    )


def info_outputs(tensors: object) -> list[str]:
    assert isinstance(tensors, tuple)
    return [tensor.name for tensor in tensors]


def test_it_does_not_say_when_it_was_made(built: tuple[Project, BuildReport]) -> None:
    data = of(built, "a_qnn.bin").read_bytes()
    stamps = set(re.findall(rb'"timestamp": "([^"]*)"', data))
    assert stamps == {EPOCH}
    stream = io.BytesIO(data)
    parts = dlc.entries(stream)
    stored = [part for part in parts if part.name.startswith((dlc.CACHE, dlc.WEIGHTS))]
    assert data.count(EPOCH) == 1 + len(CHIPS) + len(stored), "all of them, wherever they are"
    assert sorted(dlc.chips(stream, parts).values()) == sorted(CHIPS)
    assert {part.crc for part in parts} == {0}


def test_each_chip_alone_is_run_and_the_file_is_held_to_it(
    built: tuple[Project, BuildReport],
) -> None:
    (group,) = built[1].groups
    assert group.verify is not None
    numbers = {each.input_set: each for each in group.verify.numbers}
    assert sorted(numbers) == sorted(f"seed 0, set 0, {chip}" for chip in CHIPS.values())
    for each in numbers.values():
        assert each.sessions == "generating"
        assert each.comparison.cosine is not None
        assert 0.9999 < each.comparison.cosine < 1.0
    findings = [f for f in group.verify.findings if f.check == "boundaries"]
    assert sorted(f.message.partition(":")[0] for f in findings) == sorted(CHIPS.values())
    assert {f.outcome for f in findings} == {"pass"}
    unread = [f for f in group.verify.findings if f.outcome == "not checkable"]
    assert all("for several chips" in finding.message for finding in unread)


def test_a_package_elsewhere_and_later_has_the_same_bytes(
    built: tuple[Project, BuildReport], tmp_path: Path
) -> None:
    other = project(tmp_path / "else where", ["60", "SM8650", 69], verify={"numbers": "off"})
    other.write()
    api.package(other.manifest, out=tmp_path / "out", cache=False)
    package = tmp_path / "out" / "m.ortpackage"
    for name in ("a_qnn.bin", "a_ctx.onnx"):
        assert (package / "default/g" / name).read_bytes() == of(built, name).read_bytes(), name
    said = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
    (variant,) = said["components"]["a"]["variants"].values()
    assert variant["compatibility_string"].split(":")[5] == "60,57,69"
    assert "provider_options" not in variant["executor_info"]["ort"], "chips are in the context"


def test_plan_says_what_several_chips_take(tmp_path: Path) -> None:
    made = project(tmp_path / "p", [60, 57])
    made.write()
    (group,) = api.plan(made.manifest).groups
    (words,) = group.cost
    assert "for 2 chips" in words
    assert "again for each chip" in words
    (group,) = api.plan(made.manifest, verify=False).groups
    assert "alone" not in group.cost[0]
    made.section("execution_providers", "htp", "options")["soc_model"] = 60
    made.write()
    assert api.plan(made.manifest).groups[0].cost == ()


def test_other_tolerances_need_no_compile_and_no_run(tmp_path: Path) -> None:
    made = project(tmp_path / "p", [60, 57], verify={"tolerance": {"max_rel": 1e-7}})
    with pytest.raises(EpctxError, match=r"SoC 60 \(sc8380xp, v73\)"):
        made.build()
    assert [event for event in made.events if event.stage == "compile"]
    del made.section("model_groups", "g")["verify"]
    report = made.build()
    assert not [event for event in made.events if event.stage == "compile"]
    (group,) = report.groups
    assert group.verify is not None
    assert len(group.verify.numbers) == 2


def test_a_file_without_a_chip_or_with_damage_is_told(
    built: tuple[Project, BuildReport], tmp_path: Path
) -> None:
    data = of(built, "a_qnn.bin").read_bytes()
    model = ir.load(of(built, "a_ctx.onnx"))
    nodes = [node for node in model.graph if epcontext.is_epcontext(node)]
    ep = registry.bind(QNN, {"soc_model": ("60", "57")})
    assert isinstance(ep, QNNExecutionProvider)
    (wrong,) = ep.misfits(of(built, "a_qnn.bin"), nodes)
    assert "69 (sm8750, v79)" in wrong
    for name, damaged in {
        "cut": data[:-1000],
        "a chip renamed": data.replace(b'"socModel": 69', b'"socModel": 57'),
        "a name": data.replace(b"htp.cache.sm8750.0", b"htp.cache.sm8751.0", 1),
    }.items():
        path = tmp_path / "a_qnn.bin"
        path.write_bytes(damaged)
        found = api.inspect(path).binary
        assert found is not None
        assert found.damaged or found.info is None, name
        path.unlink()


def test_a_session_that_cannot_load_it_says_so(built: tuple[Project, BuildReport]) -> None:
    with pytest.raises(EpctxError, match="for several chips, and QNN's x86 simulator"):
        runtime.InferenceSession(of(built, "a_ctx.onnx"))


def test_embedded_and_cut_by_the_manifest(tmp_path: Path) -> None:
    """What the manifest cuts makes a file each: parts share nothing for several chips."""
    made = project(tmp_path / "p", [60, 57], embed_mode=1)
    made.section("model_groups")["parts"] = {
        "models": ["a"],
        "execution_providers": ["htp"],
        "partition": {"exclude": {"nodes": ["act1"]}},
    }
    report = made.build()
    nodes = epcontext.read_all(onnx.load(made.published / "g" / "a_ctx.onnx"))
    payload = nodes[0].ep_cache_context
    assert payload is not None
    assert payload.startswith(dlc.MAGIC)
    assert set(re.findall(rb'"timestamp": "([^"]*)"', payload)) == {EPOCH}
    assert sorted(path.name for path in (made.published / "parts").glob("*.bin")) == [
        *("a_1_qnn.bin", "a_qnn.bin")
    ]
    for group in report.groups:
        assert group.verify is not None
        assert len({numbers.input_set for numbers in group.verify.numbers}) == 2


@pytest.mark.parametrize(
    ("chips", "words"),
    [
        ([60, "sc8380xp"], "60 and sc8380xp are 60 (sc8380xp, v73)"),
        ([60, "sm8651"], 'did you mean "sm8650"'),
        ([60, 14], "soc_model is 14, a chip that QAIRT"),
        ([60, 0], "lists 0"),
        ([], "entr"),
        ("60,57", "several chips are a list"),
    ],
)
def test_lists_that_are_refused(tmp_path: Path, chips: object, words: str) -> None:
    made = project(tmp_path / "p", chips)
    made.write()
    (found,) = api.validate(made.manifest).violations
    assert found.code == "E0315"
    assert words in f"{found.what} {found.remedy}"
    assert found.line


def test_a_sharing_group_is_refused_with_qnns_reason(tmp_path: Path) -> None:
    made = project(tmp_path / "p", [60, 57])
    made.section("models")["b"] = {"path": "a.onnx"}
    made.section("model_groups", "g").update(models=["a", "b"], sharing_groups={"s": ["a", "b"]})
    assert "unsupported with shared EP context usage" in refused(made)


FORGETFUL = """
from epctx.providers.onnxruntime.qnn import socs
socs.MEASURED = "0.0"  # as with another QAIRT, whose chips epctx does not know
from tests.kit import real_ep
real_ep.main()
"""


def test_a_chip_that_qnn_compiles_nothing_for_is_named(tmp_path: Path) -> None:
    """QNN says "ok" and writes nothing, for all chips of the list."""
    source = models.save(tmp_path / "a.onnx", models.mlp(layers=2, width=32))
    request = real_ep.Request(
        providers=[(QNN, {"soc_model": ("60", "14")})],
        models={"a": source},
        out=str(tmp_path / "out"),
    )
    ended = subprocess.run(
        [sys.executable, "-c", FORGETFUL],
        cwd=tmp_path,
        env={"PYTHONPATH": str(real_ep.ROOT), "PATH": "/usr/bin:/bin"},
        input=msgspec.json.encode(request),
        capture_output=True,
        check=False,
    )
    answer = json.loads(ended.stdout)
    assert answer["error"][0] == "CompileError", ended.stderr
    assert "it takes no node for SoC 14 alone either" in answer["error"][1]
    assert "SoC 60" not in answer["error"][1]
