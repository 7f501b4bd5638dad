"""Models of several sources, groups and EPs in one model: built, run, held to its parts."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from epctx import api
from epctx.engine.report import BuildReport, GroupReport
from epctx.errors import EpctxError, LockError, ManifestError, ModelError, VerificationError
from epctx.graph.epcontext import PIECES, read_all
from epctx.runtime import InferenceSession
from tests.kit import command_line
from tests.kit.compositions import PARTS, REFERENCE, WIDTH, project, save
from tests.kit.projects import Project

pytestmark = pytest.mark.usefixtures("jobs_inline")


@dataclass(frozen=True)
class Built:
    project: Project
    report: BuildReport

    def group(self, name: str) -> GroupReport:
        return next(group for group in self.report.groups if group.group == name)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Several compositions of the same parts; nothing here changes it."""
    made = project(
        tmp_path_factory.mktemp("compose"),
        {
            "whole": {"parts": PARTS, "verify": {"inputs": {"count": 2}}},
            "embedded": {"parts": PARTS, "embed_mode": 1},
            "named": {
                "parts": {
                    "encoder": {"prefix": "e_"},
                    "second": {
                        "model": "head",
                        "prefix": "h_",
                        "inputs": {"features": {"part": "encoder", "output": "hidden"}},
                    },
                },
                "outputs": {
                    "y": {"part": "second", "output": "logits"},
                    "seen": {"part": "encoder", "output": "hidden"},
                },
            },
        },
    )
    return Built(made, made.build())


def test_each_output_has_the_precision_of_the_parts_that_it_depends_on(tmp_path: Path) -> None:
    outputs = {
        "y": {"part": "head", "output": "logits"},
        "seen": {"part": "encoder", "output": "hidden"},
    }
    made = project(tmp_path, {"whole": {"parts": PARTS, "outputs": outputs}})

    def halve(body: onnx.ModelProto) -> None:
        casts = [onnx.helper.make_node("Cast", ["r"], ["h"], to=onnx.TensorProto.FLOAT16)]
        casts.append(onnx.helper.make_node("Cast", ["h"], ["f"], to=onnx.TensorProto.FLOAT))
        tail = body.graph.node.pop()
        tail.input[0] = "f"
        body.graph.node.extend([*casts, tail])

    made.edit("body", halve)
    verified = Built(made, made.build()).group("whole").verify
    assert verified is not None
    limits = {numbers.output: numbers.tolerance.max_rel for numbers in verified.numbers}
    assert limits == {"y": 0.02, "seen": 5e-5}


def test_cuts_of_the_parts_are_no_cuts_of_the_whole(tmp_path: Path) -> None:
    made = project(tmp_path, {"whole": {"parts": PARTS}})
    made.section("defaults")["partition"] = {"pieces": {"count": 1}}
    made.build()
    files = {path.name: onnx.load(path) for path in made.published.rglob("*_ctx.onnx")}
    told = {name: {each.key for each in file.metadata_props} for name, file in files.items()}
    assert PIECES not in told.pop("whole_ctx.onnx")
    assert told and all(PIECES in keys for keys in told.values())


def feeds(*names: str) -> dict[str, npt.NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((1, WIDTH)).astype(np.float32) for name in names}


def session(path: Path) -> InferenceSession:
    providers: list[tuple[str, dict[str, Any]]] = [
        (REFERENCE, {"source": "one"}),
        (REFERENCE, {"source": "two", "exclude_ops": ("Relu",)}),
    ]
    return InferenceSession(path, providers=providers)


def one_after_the_other(
    folder: Path, given: dict[str, npt.NDArray[np.float32]]
) -> dict[str, npt.NDArray[np.generic]]:
    """What the parts give: every value by name."""
    known: dict[str, npt.NDArray[np.generic]] = dict(given)
    for group, name in (("ends", "encoder"), ("middle", "body"), ("ends", "head")):
        with session(folder / group / f"{name}_ctx.onnx") as part:
            names = [arg.name for arg in part.get_outputs()]
            own = {arg.name: known[arg.name] for arg in part.get_inputs()}
            found = part.run(names, own)
            known |= {n: np.asarray(array) for n, array in zip(names, found, strict=True)}
    return known


def test_three_sources_on_two_eps_are_one_model_that_equals_its_parts(built: Built) -> None:
    folder = built.project.published
    assert sorted(p.name for p in (folder / "whole").iterdir()) == [
        "SHA256SUMS",
        "body_two.bin",
        "encoder_one.bin",  # of encoder and head, which share it: once
        "whole_ctx.onnx",
    ]
    model = onnx.load(folder / "whole" / "whole_ctx.onnx")
    assert [node.source for node in read_all(model)] == ["one", "two", "two", "one"]
    given = feeds("image", "mask")
    with session(folder / "whole" / "whole_ctx.onnx") as whole:
        assert [arg.name for arg in whole.get_inputs()] == ["image", "mask"]
        (logits,) = whole.run(["logits"], given)
    np.testing.assert_array_equal(logits, one_after_the_other(folder, given)["logits"])


def test_what_was_compared_is_in_the_report(built: Built) -> None:
    group = built.group("whole")
    assert group.composition is not None and group.verify is not None
    assert group.composition.links == {
        "body.hidden": "encoder.hidden",
        "head.features": "body.features",
    }
    assert group.composition.inputs == {"image": ("encoder.image",), "mask": ("body.mask",)}
    assert {(n.input_set, n.passed) for n in group.verify.numbers} == {
        ("seed 0, set 0", True),
        ("seed 0, set 1", True),
    }
    assert any(
        "run one after the other, on generated inputs, all values equal" in f.message
        for f in group.verify.findings
    )
    assert [a.action for a in group.actions] == ["compose"]


def test_contexts_may_be_embedded_the_shared_one_once(built: Built) -> None:
    folder = built.project.published
    assert sorted(p.name for p in (folder / "embedded").iterdir()) == [
        "SHA256SUMS",
        "embedded_ctx.onnx",
    ]
    nodes = read_all(onnx.load(folder / "embedded" / "embedded_ctx.onnx"))
    assert [(n.embed_mode, n.main_context) for n in nodes] == [(1, 1), (1, 1), (1, 0), (1, 0)]
    given = feeds("image", "mask")
    with session(folder / "embedded" / "embedded_ctx.onnx") as whole:
        (logits,) = whole.run(["logits"], given)
    np.testing.assert_array_equal(logits, one_after_the_other(folder, given)["logits"])


def test_other_names_are_connected_and_given_as_the_manifest_says(built: Built) -> None:
    folder = built.project.published
    given = feeds("image")
    with session(folder / "named" / "named_ctx.onnx") as whole:
        assert [arg.name for arg in whole.get_inputs()] == ["e_image"]
        y, seen = whole.run(["y", "seen"], {"e_image": given["image"]})
    with session(folder / "ends" / "encoder_ctx.onnx") as encoder:
        (hidden,) = encoder.run(None, given)
    with session(folder / "ends" / "head_ctx.onnx") as head:
        (logits,) = head.run(None, {"features": hidden})
    np.testing.assert_array_equal(seen, hidden)
    np.testing.assert_array_equal(y, logits)


def test_a_composition_is_verified_with_its_parts_and_without(built: Built, tmp_path: Path) -> None:
    manifest, lock = built.project.manifest, built.project.lock
    report = api.verify(built.project.published, manifest=manifest, lock=lock, strict=True)
    assert report.passed and len(report.folders) == 5
    copy = tmp_path / "whole"
    shutil.copytree(built.project.published / "whole", copy)
    report = api.verify(copy, manifest=manifest, lock=lock)
    unchecked = [f.message for f in report.findings("not checkable")]
    assert report.passed and len(unchecked) == 1 and "is not there" in unchecked[0]
    (copy / "body_two.bin").write_bytes(b"other")
    failed = {f.policy for f in api.verify(copy, manifest=manifest).findings("fail")}
    assert "integrity" in failed and "numbers" not in failed  # nothing of it was run


def test_nothing_is_done_again_and_a_changed_part_composes_again(tmp_path: Path) -> None:
    made = project(tmp_path / "p", {"whole": {"parts": PARTS}})
    made.build()
    before = made.files()
    assert {group.state for group in made.build().groups} == {"up to date"}
    assert planned(made) == ("up to date", ())
    (made.published / "whole" / "whole_ctx.onnx").write_bytes(b"edited")
    assert [g.state for g in made.build().groups] == ["up to date", "up to date", "built"]
    assert made.files() == before
    made.build(locked=True)

    save(made.folder, "body", "hidden", "features", mask=False)
    assert planned(made) == ("runs", ("depends on the outputs of middle",))
    report = made.build(only=["middle"])
    assert planned(made) == ("runs", ("compose of whole: its parts or settings have changed",))
    assert [g.group for g in report.groups] == ["middle"]
    report = made.build(only=["whole"])
    assert [(g.group, g.state) for g in report.groups] == [
        ("ends", "up to date"),
        ("middle", "up to date"),
        ("whole", "built"),
    ]
    assert made.files()["whole/whole_ctx.onnx"] != before["whole/whole_ctx.onnx"]

    made.build()
    made.section("compose", "whole", "parts")["head"] = {"prefix": "h_"}
    with pytest.raises(LockError, match="differs from the lock") as caught:
        made.build(locked=True)
    assert "default/whole: parts.head.prefix" in str(caught.value)
    del made.document["compose"]
    made.build()
    assert not (made.published / "whole").exists()
    assert "compositions" not in made.lock.read_text(encoding="utf-8")


def planned(made: Project) -> tuple[str, tuple[str, ...]]:
    """What a build would do about the composition, and why."""
    *_, whole = api.plan(made.manifest, out=made.folder / "dist").groups
    return whole.state, whole.because


def test_a_comparison_that_cannot_fail_is_told(tmp_path: Path) -> None:
    verify = {"inputs": {"count": 2}}
    made = project(tmp_path / "p", {"whole": {"parts": PARTS, "verify": verify}})
    save(made.folder, "head", "features", "logits", scale=0)
    *_, whole = made.build().groups
    assert whole.verify is not None
    told = [f.message for f in whole.verify.findings if f.check == "sensitivity"]
    assert told == ["its outputs 'logits' do not depend on the inputs: this comparison cannot fail"]


def test_a_composition_without_required_numbers_is_not_published(tmp_path: Path) -> None:
    made = project(tmp_path / "p", {"whole": {"parts": PARTS, "verify": {"numbers": "off"}}})
    made.build()
    made.section("compose", "whole", "verify")["require"] = ["numbers"]
    with pytest.raises(VerificationError, match="needs numbers") as caught:
        made.build()
    assert caught.value.where == "whole@default" and caught.value.code == "E0704"
    made.section("compose", "whole")["verify"] = {"require": ["numbers"]}
    with pytest.raises(VerificationError, match="needs numbers"):
        made.build(verify=False)
    *_, whole = made.build().groups
    assert whole.verify is not None and whole.verify.numbers


def refused(made: Project) -> EpctxError:
    with pytest.raises(EpctxError) as caught:
        made.build(verify=False)
    assert not made.published.exists()
    return caught.value


def test_a_clash_of_names_says_which_prefix_helps_and_it_does(tmp_path: Path) -> None:
    """All three have a Relu node left to the CPU, and values of the same names around it."""
    made = project(tmp_path / "p", {"whole": {"parts": {"encoder": {}, "body": {}}}})
    ops = {"source": "one", "exclude_ops": ["Relu"]}
    made.section("execution_providers", "one")["options"] = ops
    error = refused(made)
    assert isinstance(error, ManifestError)
    assert error.what == 'the part encoder and the part body both have a value "m"'
    assert error.remedy == "give body a prefix: `prefix: body_`"
    made.section("compose", "whole", "parts")["body"] = {"prefix": "body_"}
    made.build(verify=False)
    with session(made.published / "whole" / "whole_ctx.onnx") as whole:
        assert [arg.name for arg in whole.get_inputs()] == ["image", "body_mask"]
        assert [arg.name for arg in whole.get_outputs()] == ["body_features"]


def test_files_of_one_name_are_a_clash_too(tmp_path: Path) -> None:
    """Two groups build a model of one name for one EP, with other names inside the binary."""
    again = {"model": "encoder", "group": "last", "inputs": {"image": {"input": "second"}}}
    first = {"model": "encoder", "group": "ends"}
    made = project(tmp_path / "p", {"whole": {"parts": {"first": first, "again": again}}})
    made.section("model_groups")["last"] = {
        "models": ["encoder"],
        "execution_providers": ["one"],
        "node_name_prefix": "last_",
    }
    outputs = {n: {"part": n, "output": "hidden"} for n in ("first", "again")}
    made.section("compose", "whole")["outputs"] = outputs
    error = refused(made)
    assert error.what == 'the part first and the part again both have a file "encoder_one.bin"'
    assert error.remedy == "give again a prefix: `prefix: again_`"
    made.section("compose", "whole", "parts")["again"] = {**again, "prefix": "again_"}
    made.build(verify=False)
    names = {p.name for p in (made.published / "whole").iterdir()}
    assert {"encoder_one.bin", "again_encoder_one.bin"} <= names


def test_initializers_of_one_content_are_there_once(tmp_path: Path) -> None:
    """Two groups build a model of one name, for different EPs, each with its initializers."""
    parts = {"first": {"model": "head", "group": "ends"}, "body": {}, "head": {"group": "last"}}
    made = project(tmp_path / "p", {"whole": {"parts": parts}})
    save(made.folder, "head", "features", "logits")
    made.section("model_groups")["last"] = {"models": ["head"], "execution_providers": ["two"]}
    for name in ("ends", "last"):
        made.section("model_groups", name)["external_initializers"] = {"file": "{model}.data"}
    made.section("execution_providers", "one")["options"] = {"source": "one", "ops": ["Tanh"]}
    made.section("execution_providers", "two")["options"] = {"source": "two", "ops": ["Relu"]}
    error = refused(made)
    assert 'both have a file "head.data"' not in error.what  # the weights are the same: once
    assert error.remedy.startswith("give head a prefix")
    section = made.section("compose", "whole", "parts")
    section["first"] = {"model": "head", "group": "ends", "prefix": "first_"}
    section["head"] = {"group": "last", "prefix": "head_"}
    made.build()
    assert [p.name for p in (made.published / "whole").iterdir() if p.suffix == ".data"] == [
        "head.data"
    ]


def test_ends_that_do_not_fit_are_an_error_that_names_both(tmp_path: Path) -> None:
    made = project(tmp_path / "p", {"whole": {"parts": {"encoder": {}, "body": {}}}})
    save(made.folder, "body", "hidden", "features", width=32)
    error = refused(made)
    assert isinstance(error, ModelError)
    assert error.what == "encoder.hidden and body.hidden do not fit: their shapes differ"
    assert error.why == "encoder.hidden is float32[1, 64], body.hidden is float32[1, 32]"


SHARED = {"mask": {"input": "shared"}}
MISFITS: dict[str, tuple[dict[str, object], int, str, str]] = {
    "one name, brought by two parts": (
        {"encoder": {}, "body": {"inputs": {"hidden": {"input": "image"}}}},
        3,
        "body",
        'the parts encoder and body both bring an input "image"',
    ),
    "one input of the whole, of two shapes": (
        {"body": {"inputs": SHARED}, "wide": {"inputs": SHARED, "prefix": "w_"}},
        4,
        "whole",
        "body.mask and wide.mask do not fit: their shapes differ",
    ),
    "an input that no part has": (
        {"body": {"inputs": {"masc": {"input": "shared"}}}, "head": {}},
        3,
        "inputs",
        'the part body has no input "masc"',
    ),
    "an output that is an input of another shape": (
        {"body": {}, "wide": {"inputs": {"hidden": {"part": "body", "output": "features"}}}},
        4,
        "whole",
        "body.features and wide.hidden do not fit: their shapes differ",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_parts_that_do_not_meet_are_found_before_anything_is_compiled(
    tmp_path: Path, misfit: str
) -> None:
    """By `validate`, and by a build with the same place in the manifest and the same exit code."""
    parts, code, key, what = MISFITS[misfit]
    made = project(tmp_path / "p", {"whole": {"parts": parts}})
    save(made.folder, "wide", "hidden", "wide_features", mask=True, width=32)
    made.section("models")["wide"] = {"path": "wide.onnx"}
    made.section("model_groups", "middle")["models"] = ["body", "wide"]
    made.write()
    lines = made.manifest.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("compose:"))
    place = next(n for n, line in enumerate(lines) if n > start and line.strip() == f"{key}:")
    validated = command_line.inside("validate", "m.yaml", cwd=made.folder)
    ran = command_line.inside("build", "m.yaml", cwd=made.folder)
    for done, under in ((validated, place + 1), (ran, place + 1)):
        assert done.returncode == code, done.stderr
        told = done.stderr + done.stdout
        assert what in told and "\n  -> " in told
        assert re.search(rf"m\.yaml:({under}|{under + 1}):\d+: compose\.whole", told), told
    assert not made.published.exists()
    with pytest.raises(EpctxError) as refusal:
        made.build()
    assert not [event for event in made.events if event.state not in ("notice", "planned")]
    assert (refusal.value.file, refusal.value.exit_code) == ("m.yaml", code)
    assert refusal.value.line in (place + 1, place + 2)


def test_one_compiled_model_is_one_part(tmp_path: Path) -> None:
    parts = {"left": {"model": "encoder"}, "right": {"model": "encoder", "prefix": "right_"}}
    made = project(tmp_path / "p", {"whole": {"parts": parts}})
    error = refused(made)
    assert error.what == "the parts left and right are one compiled model"
    made.section("models")["again"] = {"path": "encoder.onnx"}
    made.section("model_groups", "ends")["models"] = ["encoder", "head", "again"]
    made.section("compose", "whole", "parts")["right"] = {"model": "again", "prefix": "right_"}
    made.build()
    assert (made.published / "whole" / "whole_ctx.onnx").is_file()


def test_a_part_that_fails_fails_the_composition_and_nothing_else(tmp_path: Path) -> None:
    made = project(tmp_path / "p", {"whole": {"parts": PARTS}})
    made.section("model_groups", "middle")["partition"] = {"require_coverage": 1.0}
    with pytest.raises(EpctxError):
        made.build(keep_going=True)
    assert (made.published / "ends").is_dir() and not (made.published / "whole").exists()
    assert not made.lock.exists()


def test_what_a_part_draws_at_random_is_held_against_nobody(tmp_path: Path) -> None:
    made = project(tmp_path / "p", {"whole": {"parts": PARTS}})
    head = onnx.load(tmp_path / "p" / "head.onnx")
    head.graph.node[1].op_type = "RandomNormalLike"
    onnx.save(head, tmp_path / "p" / "head.onnx")
    group = Built(made, made.build()).group("whole")
    assert group.verify is not None and group.state == "built"
    told = [f.message for f in group.verify.findings if f.check == "outputs"]
    assert told == ["random: on the same inputs the source's kernels give other 'logits' each time"]
    made.section("compose", "whole")["verify"] = {"require": ["numbers"]}
    for _ in range(2):  # neither what the cache has nor what is published counts
        with pytest.raises(VerificationError, match="required numbers were not run: random: on"):
            made.build()


def test_a_package_says_that_it_has_no_composition(built: Built) -> None:
    package = api.package(built.project.folder / "m.yaml", out=built.project.folder / "dist")
    assert package.left_out == ("default/whole", "default/embedded", "default/named")
    folder = built.project.folder / "dist" / package.path
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["additional_metadata"]["epctx"]["left_out"] == sorted(package.left_out)
    held = folder.rglob("*_ctx.onnx")
    assert {path.name for path in held} == {f"{part}_ctx.onnx" for part in PARTS}
