"""Rules about the whole manifest, its buckets, its size; warnings."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.error_codes import Code
from epctx.errors import Violation
from epctx.parsing import document, load, precedence
from epctx.parsing.document import build
from epctx.parsing.document.tree import Node
from epctx.parsing.rules import check
from epctx.parsing.rules.check import doubts

HEAD = "schema_version: 1\nname: m\nmodels: {a: {path: a.onnx}, b: {path: b.onnx}}\n"
EPS = "execution_providers: {ref: {provider: ReferenceExecutionProvider}, npu: {provider: ReferenceExecutionProvider, options: {source: npu}}}\n"  # noqa: E501


def violations(text: str, folder: Path = Path("/x"), **kwargs: bool) -> tuple[Violation, ...]:
    read = document.parse(text.encode(), file="m.yaml", path=folder / "m.yaml")
    return load.violations(read, **kwargs)


def groups(text: str, rest: str = "") -> tuple[Violation, ...]:
    return violations(f"{HEAD}{EPS}model_groups: {{main: {{{text}}}}}\n{rest}")


@pytest.mark.parametrize(
    "group",
    [
        "models: [a], execution_providers: []",
        "models: [a, b], execution_providers: [ref, npu]",
        "models: [a, b], execution_providers: [ref], sharing_groups: {s: [b, a]}",
        "models: [a], execution_providers: [ref], external_initializers: {file: weights.data}",
        "models: [a, b], execution_providers: [ref], external_initializers: {file: '{model}.w'}",
        "models: [a], execution_providers: [ref], external_initializers: null, timeout: null",
        "models: [a], execution_providers: [], partition: {require_coverage: 0}",
        "models: [a], execution_providers: [], partition: {require_coverage: null}",
        "models: [a], execution_providers: [ref], optimize: {level: [simplify, infer-shapes]}",
        "models: [a], execution_providers: [ref], session_options: {session.disable_prepacking: 1}",
        "models: [a], execution_providers: [ref], session_options: {session.x64quantprecision: 1}",
        "models: [a], execution_providers: [ref], "
        "session_options: {session.graph_optimization_level: extended}",
        "models: [a], execution_providers: [ref], embed_mode: 1, node_name_prefix: a.b_",
        "models: [a], execution_providers: [ref], embed_mode: 1.0",
        "models: [a], execution_providers: [ref], verify: {inputs: {ranges: {x: [0, 0]}}}",
        "models: [a], execution_providers: [ref], verify: {inputs: {files: [one.npz, in.PB]}}",
    ],
)
def test_groups_that_are_right(group: str) -> None:
    assert groups(group) == ()


def test_names_that_differ_by_case_may_be_in_different_groups() -> None:
    text = (
        "schema_version: 1\nname: m\nmodels: {a: {path: a.onnx}, A: {path: a.onnx}}\n"
        "defaults: {execution_providers: []}\n"
        "model_groups: {x: {models: [a]}, y: {models: [A]}}\n"
    )
    assert violations(text) == ()


def test_a_problem_of_a_default_stands_at_the_default() -> None:
    text = f"{HEAD}{EPS}defaults: {{embed_mode: 1}}\nmodel_groups:\n  main: {{models: [a, b], execution_providers: [ref], sharing_groups: {{s: [a, b]}}}}\n"  # noqa: E501
    (violation,) = violations(text)
    assert (violation.line, violation.path) == (5, "defaults.embed_mode")


def test_a_problem_of_a_target_stands_at_the_target() -> None:
    (violation,) = groups(
        "models: [a], execution_providers: [ref]",
        "targets:\n  x: {}\n  y: {model_groups: {main: {execution_providers: [rf]}}}\n",
    )
    assert violation.path == "targets.y.model_groups.main.execution_providers[0]"
    assert violation.line == 8


def test_a_problem_of_a_group_in_one_target_alone_names_the_target() -> None:
    found = groups(
        "models: [a, b], execution_providers: [ref], sharing_groups: {s: [a, b]}, embed_mode: 1",
        "targets:\n  x: {}\n  y: {}\n  z: {model_groups: {main: {embed_mode: 0}}}\n",
    )
    (violation,) = found
    assert violation.path == "model_groups.main.embed_mode"
    assert violation.what.endswith("(for targets x, y)")


def test_a_problem_in_every_target_is_told_once() -> None:
    (violation,) = groups(
        "models: [a, c], execution_providers: [ref]", "targets: {x: {}, y: {}, z: {exclude: []}}\n"
    )
    assert violation.what == 'there is no model "c"'


def test_a_group_that_no_target_builds_is_checked_too() -> None:
    text = (
        f"{HEAD}{EPS}model_groups: {{one: {{models: [a], execution_providers: [ref]}},"
        " two: {models: [c], execution_providers: [ref]}}\ntargets: {x: {exclude: [two]}}\n"
    )
    (violation,) = violations(text)
    assert violation.path == "model_groups.two.models[0]"


def test_a_base_that_only_its_targets_complete_is_right() -> None:
    found = groups(
        "models: [a]", "targets: {x: {model_groups: {main: {execution_providers: []}}}}\n"
    )
    assert found == ()


def test_a_target_can_take_sharing_away() -> None:
    assert groups(
        "models: [a, b], execution_providers: [ref], sharing_groups: {s: [a, b]}",
        "targets: {x: {model_groups: {main: {embed_mode: 1, sharing_groups: {s: null}}}}}\n",
    ) == ()  # fmt: skip


def test_a_target_can_bring_an_ep() -> None:
    assert groups(
        "models: [a], execution_providers: [ref]",
        "targets: {x: {execution_providers: {new: {provider: ReferenceExecutionProvider}},"
        " model_groups: {main: {execution_providers: [new]}}}}\n",
    ) == ()  # fmt: skip


def test_an_ep_that_cannot_share_is_named() -> None:
    trt = "execution_providers: {trt: {provider: TensorrtExecutionProvider}}\n"
    found = violations(
        f"{HEAD}{trt}model_groups: {{g: {{models: [a, b], execution_providers: [trt],"
        " sharing_groups: {s: [a, b]}}}\n"
    )
    assert [v.what for v in found] == ["trt cannot share a context"]


@pytest.mark.needs("links")
def test_files_must_be_there_and_inside(tmp_path: Path) -> None:
    inside = tmp_path / "project"
    inside.mkdir()
    (tmp_path / "secret.npz").write_bytes(b"")
    (inside / "good.npz").write_bytes(b"")
    (inside / "link.npz").symlink_to(tmp_path / "secret.npz")
    text = (
        f"{HEAD}{EPS}model_groups: {{main: {{models: [a], execution_providers: [ref],"
        " verify: {inputs: {files: ['*.npz']}}}}\n"
    )
    (violation,) = violations(text, inside)
    assert violation.what == "leads out of the manifest's folder"
    assert violations(text, inside, allow_outside=True) == ()
    (inside / "link.npz").unlink()
    assert violations(text, inside) == ()


def test_what_the_schema_has_refused_has_no_second_message() -> None:
    found = groups(
        "models: a, execution_providers: {ref: 1}, sharing_groups: {s: a}, embed_mode: 7"
    )
    assert [v.path for v in found] == [
        "model_groups.main.models",
        "model_groups.main.execution_providers",
        "model_groups.main.sharing_groups.s",
        "model_groups.main.embed_mode",
    ]


def test_an_initializer_file_may_be_longer_than_a_name() -> None:
    name = "m" * 100
    text = (
        f"schema_version: 1\nname: m\nmodels: {{{name}: {{path: a.onnx}}}}\n"
        f"model_groups: {{g: {{models: [{name}], execution_providers: [],"
        " external_initializers: {file: '{model}.data'}}}\n"
    )
    assert violations(text) == ()


def test_generated_inputs_of_the_defaults_may_stand_below_files() -> None:
    text = (
        f"{HEAD}{EPS}defaults: {{verify: {{inputs: {{seed: 1, ranges: {{x: [0, 1]}}}}}}}}\n"
        "model_groups: {main: {models: [a], execution_providers: [ref],"
        " verify: {inputs: {files: [a.npz]}}}}\n"
    )
    assert violations(text) == ()


def problems(models: str) -> list[tuple[str, Code]]:
    text = f"models: {{{models}}}".encode()
    root = document.parse(text, file="m.yaml", path=Path("m.yaml")).root
    return [(each.what, each.code) for each in check.check_buckets(root, frozenset())]


def test_what_is_right() -> None:
    assert problems("a: {dimensions: {s: [8, 16], t: [9, 9]}}, a_s8: {}") == []


def test_a_name_is_there_once() -> None:
    same = "but a model has that name already"
    assert problems("a: {dimensions: {s: [8, 16]}}, a_s16: {}") == [
        (f"makes a model a_s16, {same}", Code.OUTPUT_CLASH)
    ]
    ((what, code),) = problems("a: {dimensions: {s: [8, 16]}, bucket_name: x}")
    assert (what, code) == (
        "makes a model x, but a bucket of a has that name already",
        Code.OUTPUT_CLASH,
    )


def test_a_name_is_safe_as_a_file_name() -> None:
    ((what, code),) = problems("a: {dimensions: {s: [8]}, bucket_name: '../{s}'}")
    assert what.startswith('makes a model "../8", which') and code is Code.WRONG_NAME


def test_lists_are_of_one_length() -> None:
    ((what, _),) = problems("a: {dimensions: {s: [8, 16], t: [9]}}")
    assert what == "lists 1 size, and s lists 2"


def test_what_the_schema_refuses_is_passed_over() -> None:
    text = b"models: {a: {dimensions: {s: [8, 16], t: [x]}}}"
    root = document.parse(text, file="m.yaml", path=Path("m.yaml")).root
    listed = root.get("models", "a", "dimensions", "t")
    assert listed is not None
    assert list(check.check_buckets(root, frozenset({listed}))) == []
    assert len(list(check.check_buckets(root, frozenset()))) == 1


SIZED = """
defaults: {embed_mode: 1}
model_groups: {a: {models: [x]}, b: {models: [y, z], timeout: 5m}}
compose: {c: {parts: {x: {group: a}}}}
"""
COMPOSED = 5
TARGETS = ("{}", "{include: [a, none]}", "{exclude: [a, none]}", "{include: [a, b], exclude: [b]}")


def root(targets: str = "") -> Node:
    return build.build(SIZED + targets, file="m.yaml").root


def counted(node: Node) -> int:
    """The values of the groups that `precedence` makes, one by one."""
    return sum(check.values(group.node) for t in precedence.targets(node) for group in t.groups)


@pytest.mark.parametrize("what", TARGETS)
def test_groups_are_counted_for_each_target_that_builds_them(what: str) -> None:
    alone = root(f"targets: {{t: {what}}}")
    target = alone.get("targets", "t")
    assert target is not None
    groups = len(precedence.built(alone, target))  # their mapping and that of the defaults are two
    expected = counted(alone) + groups + COMPOSED + check.values(target)
    assert check.resolved_values(alone) == expected


def test_more_than_the_limit_is_refused_at_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    many = root("targets: {" + ", ".join(f"t{n}: {{}}" for n in range(10)) + "}")
    assert check.check_size(many) == []
    monkeypatch.setenv("EPCTX_LIMIT_MANIFEST_VALUES", "100")
    (problem,) = check.check_size(many)
    assert problem.path == ("targets",) and "more than 100" in problem.what
    assert "raise EPCTX_LIMIT_MANIFEST_VALUES" in problem.remedy


TEXT = """\
schema_version: 1
name: m
models: {a: {path: a.onnx}, b: {path: b.onnx}}
execution_providers:
  htp: {provider: QNNExecutionProvider, options: {soc_model: 60}}
  ref: {provider: ReferenceExecutionProvider}
model_groups:
  g: {models: [a], execution_providers: [htp]}
  h: {models: [b], execution_providers: [ref]}
"""


def told(text: str) -> list[tuple[tuple[str | int, ...], str]]:
    root = document.parse(text.encode(), file="m.yaml", path=Path("m.yaml")).root
    return [(problem.path, problem.what) for problem in doubts(root)]


def path_of(alias: str) -> tuple[str, str]:
    return "execution_providers", alias


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("[b]", "[a]", ("models", "b")),
        ("[ref]", "[htp]", ("execution_providers", "ref")),
        ("{soc_model: 60}", "{}", ("execution_providers", "htp")),
    ],
)
def test_each_doubt(old: str, new: str, path: tuple[str, ...]) -> None:
    assert told(TEXT) == []
    ((place, _),) = told(TEXT.replace(old, new))
    assert place == path


@pytest.mark.parametrize("given", ["{soc_model: 0}", "{htp_arch: 73}"])
def test_advice_is_for_who_says_nothing(given: str) -> None:
    assert told(TEXT.replace("{soc_model: 60}", given)) == []


def test_what_a_target_uses_is_used() -> None:
    """A target takes an option away, another uses what the group does not."""
    less = "targets:\n  x: {execution_providers: {htp: {options: {soc_model: null}}}}\n"
    assert [path for path, _ in told(TEXT + less)] == [("targets", "x", *path_of("htp"))]
    used = "targets:\n  x: {model_groups: {g: {execution_providers: [ref, htp]}}, exclude: [h]}\n"
    assert told(TEXT + used) == []
