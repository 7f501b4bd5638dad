from pathlib import Path

import pytest

from epctx.manifest import Bucket, Manifest
from epctx.parsing import buckets, document, load

QNN = "{provider: QNNExecutionProvider, options: {soc_model: %s}}"
HEAD = f"""schema_version: 1
name: tiny
execution_providers:
  ref: {{provider: ReferenceExecutionProvider}}
  ryzen: {{provider: VitisAIExecutionProvider}}
  htp: {QNN % '"60"'}
  several: {QNN % '["60", "57"]'}
"""
THREE = "{path: m.onnx, dimensions: {batch: 1, sequence: [32, 64, 128]}}"
NAMES = ["bert_s32", "bert_s64", "bert_s128"]


def loaded(folder: Path, body: str) -> Manifest:
    path = folder / "epctx.yaml"
    path.write_text(HEAD + body, encoding="utf-8")
    return load.load(path)


def group(folder: Path, models: str, settings: str) -> dict[str, tuple[str, ...]]:
    """What the one group's models share."""
    body = f"models: {{{models}}}\nmodel_groups: {{g: {{{settings}}}}}"
    return dict(loaded(folder, body).targets[0].groups[0].sharing_groups)


def test_a_list_makes_a_model_of_each_size(tmp_path: Path) -> None:
    body = f"models: {{bert: {THREE}}}\nmodel_groups: {{g: {{models: [bert], "
    (target,) = loaded(tmp_path, body + "execution_providers: [ref]}}").targets
    models = target.groups[0].models
    assert [model.name for model in models] == NAMES
    assert [dict(model.dimensions) for model in models] == [
        {"batch": 1, "sequence": size} for size in (32, 64, 128)
    ]
    assert models[1].bucket == Bucket(model="bert", sizes={"sequence": 64})
    assert target.groups[0].sharing_groups == {"bert": tuple(NAMES)}
    written = target.written["g"]["models"]
    assert written["bert_s32"] == {"path": "m.onnx", "dimensions": {"batch": 1, "sequence": 32}}


@pytest.mark.parametrize(
    ("dimensions", "more", "names"),
    [
        ("sequence: [8, 16], total: [24, 32]", "", ["m_s8_t24", "m_s16_t32"]),
        ("sequence: [8, 16]", ", bucket_name: '{model}.{sequence}'", ["m.8", "m.16"]),
        ("sequence: [8.0]", "", ["m_s8"]),
        ("_length: [8], '#': [9]", "", ["m_l8_d9"]),
    ],
)
def test_what_buckets_are_called(
    dimensions: str, more: str, names: list[str], tmp_path: Path
) -> None:
    body = f"models: {{m: {{path: m.onnx, dimensions: {{{dimensions}}}{more}}}}}\n"
    found = loaded(tmp_path, f"{body}model_groups: {{g: {{models: [m], execution_providers: []}}}}")
    assert [model.name for model in found.targets[0].groups[0].models] == names


def test_a_group_may_name_one_bucket(tmp_path: Path) -> None:
    settings = "models: [bert_s64], execution_providers: [ref]"
    assert group(tmp_path, f"bert: {THREE}", settings) == {}


@pytest.mark.parametrize(
    ("settings", "shared"),
    [
        ("execution_providers: [ref]", {"bert": NAMES}),
        ("execution_providers: []", {"bert": NAMES}),
        ("execution_providers: [ryzen, ref]", {"bert": NAMES}),
        ("execution_providers: [ryzen]", {}),
        ("execution_providers: [htp]", {"bert": NAMES}),
        ("execution_providers: [several]", {}),
        ("execution_providers: [ref], embed_mode: 1", {}),
        ("execution_providers: [ref], sharing_groups: {}", {}),
        (
            "execution_providers: [ref], sharing_groups: {all: [other, bert]}",
            {"all": ["other", *NAMES]},
        ),
        (
            "execution_providers: [ref], sharing_groups: {few: [bert_s32, bert_s64]}",
            {"few": NAMES[:2]},
        ),
        (
            "execution_providers: [ref], sharing_groups: {bert: [other, bert_s32]}",
            {"bert": ["other", "bert_s32"]},
        ),
    ],
)
def test_buckets_share_unless_the_manifest_says_otherwise(
    settings: str, shared: dict[str, list[str]], tmp_path: Path
) -> None:
    models = f"bert: {THREE}, other: {{path: m.onnx}}"
    found = group(tmp_path, models, f"models: [bert, other], {settings}")
    assert found == {name: tuple(members) for name, members in shared.items()}


def test_a_target_says_otherwise(tmp_path: Path) -> None:
    body = f"""models: {{bert: {THREE}, other: {THREE.replace("32, ", "")}}}
model_groups: {{g: {{models: [bert], execution_providers: [ref]}}}}
targets:
  one: {{}}
  apart: {{model_groups: {{g: {{sharing_groups: {{bert: null}}}}}}}}
  embedded: {{model_groups: {{g: {{embed_mode: 1}}}}}}
  other: {{model_groups: {{g: {{models: [other]}}}}}}
"""
    shared = {t.name: t.groups[0].sharing_groups for t in loaded(tmp_path, body).targets}
    assert shared == {
        "one": {"bert": tuple(NAMES)},
        "apart": {},
        "embedded": {},
        "other": {"other": ("other_s64", "other_s128")},
    }


def test_a_manifest_without_lists_stays_the_same() -> None:
    text = b"models: {m: {path: m.onnx, dimensions: {sequence: 8}}}"
    root = document.parse(text, file="m.yaml", path=Path("m.yaml")).root
    assert buckets.expand(root) is root
