from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from epctx.graph.epcontext import PIECES
from epctx.manifest import Pieces
from tests.kit import folders
from tests.kit.folders import context_node, found, group, model

SHARING = {"main": ("first", "second")}


def pair(tmp_path: Path, **binaries: str) -> Path:
    """Two models that share a context, and the binaries that they name."""
    tmp_path.mkdir(exist_ok=True)
    for name in ("first", "second"):
        binary = binaries.get(name, "first_reference.bin")
        made = model(context_node(f"{name}_0", ep_cache_context=binary))
        (tmp_path / f"{name}_ctx.onnx").write_bytes(made.SerializeToString())
        (tmp_path / binary).write_bytes(b"context")
    return tmp_path


def messages(folder: Path, check: str, **request: object) -> list[str]:
    return [f.message for f in found(folder, check, "fail", **request)]


def test_n_models_that_share_give_n_plus_1_files(tmp_path: Path) -> None:
    folder = pair(tmp_path)
    asked = group("first", "second", sharing_groups=SHARING)
    for check in ("files", "sharing", "unreferenced"):
        assert [f.outcome for f in found(folder, check, group=asked)] == ["pass"]
    (finding,) = found(folder, "sharing", group=asked)
    assert finding.message == "2 models, 1 context binary"


def test_a_missing_model_of_the_group(tmp_path: Path) -> None:
    folder = pair(tmp_path)
    (folder / "second_ctx.onnx").unlink()
    asked = group("first", "second", sharing_groups=SHARING)
    assert messages(folder, "files", group=asked) == ["'second_ctx.onnx' is missing"]
    only = messages(folder, "files", group=asked, models=("first_ctx.onnx",))
    assert only == []


def test_a_model_that_is_of_no_model_of_the_group(tmp_path: Path) -> None:
    folder = pair(tmp_path)
    asked = group("first")
    assert "'second_ctx.onnx' is of no model of the group" in messages(folder, "files", group=asked)


def test_models_that_share_use_one_binary(tmp_path: Path) -> None:
    folder = pair(tmp_path, second="first_reference_2.bin")
    asked = group("first", "second", sharing_groups=SHARING)
    assert messages(folder, "sharing", group=asked) == [
        "the models that share with 'first' use several context binaries of the source "
        "'reference': first_reference.bin, first_reference_2.bin"
    ]


def test_the_binary_is_named_for_the_first_that_shares(tmp_path: Path) -> None:
    folder = pair(tmp_path, first="second_reference.bin", second="second_reference.bin")
    asked = group("first", "second", sharing_groups=SHARING)
    found_ = messages(folder, "sharing", group=asked)
    assert found_[0] == (
        "'first_ctx.onnx' uses the context binary 'second_reference.bin', which is not named "
        "for 'first'"
    )


def test_a_model_that_shares_with_nobody_has_its_own_binary(tmp_path: Path) -> None:
    folder = pair(tmp_path)
    (only,) = messages(folder, "sharing", group=group("first", "second"))
    assert only.startswith("'second_ctx.onnx' uses the context binary 'first_reference.bin'")


def test_names_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a_ctx.onnx").write_bytes(
        model(context_node(ep_cache_context="a_b_reference.bin")).SerializeToString()
    )
    (tmp_path / "a_b_reference.bin").write_bytes(b"context")
    (only,) = messages(tmp_path, "sharing", group=group("a"))
    assert "'a_b_reference.bin', which is not named for 'a'" in only


def test_parts_have_binaries_with_numbers(tmp_path: Path) -> None:
    (tmp_path / "a_ctx.onnx").write_bytes(
        model(context_node(ep_cache_context="a_1_reference.bin")).SerializeToString()
    )
    (tmp_path / "a_1_reference.bin").write_bytes(b"context")
    assert "is not named" not in " ".join(messages(tmp_path, "sharing", group=group("a")))


def test_pieces_have_a_binary_each_that_models_share(tmp_path: Path) -> None:
    for name in ("first", "second"):
        nodes = [
            context_node(f"{name}_{n}", ep_cache_context=f"first_{n}_reference.bin") for n in "12"
        ]
        made = model(*nodes)
        cuts = [[nodes[0].output[0]]] if name == "first" else []
        made.metadata_props.add(key=PIECES, value=json.dumps(cuts))
        (tmp_path / f"{name}_ctx.onnx").write_bytes(made.SerializeToString())
    for number in "12":
        (tmp_path / f"first_{number}_reference.bin").write_bytes(b"context")
    asked = group("first", "second", sharing_groups=SHARING)
    assert "use several context binaries" in messages(tmp_path, "sharing", group=asked)[0]
    in_pieces = replace(asked, pieces=Pieces(max_memory=1))
    assert messages(tmp_path, "sharing", group=in_pieces) == []
    wrong = "'second_ctx.onnx' says that it is in pieces: 1, not 2"
    assert messages(tmp_path, "pieces", group=in_pieces) == [wrong]
    assert messages(tmp_path, "pieces", group=replace(asked, pieces=Pieces(count=2))) == [wrong]


def test_a_stale_binary_in_a_folder_of_ours(tmp_path: Path) -> None:
    folder = folders.write(tmp_path)
    (folder / "old_reference.bin").write_bytes(b"stale")
    (folder / "empty").mkdir()
    failed = found(folder, "unreferenced", "fail")
    assert [f.subject for f in failed] == ["empty/", "old_reference.bin"]
    assert "no EPContext model of the folder refers to it" in failed[1].message


def test_what_belongs_to_a_folder_that_is_not_ours_is_not_known(tmp_path: Path) -> None:
    folder = folders.write(tmp_path, sums=False)
    (folder / "README.md").write_text("hello", encoding="utf-8")
    plain = model()
    del plain.graph.node[0]
    plain.graph.node[0].input[0] = "x"
    (folder / "source.onnx").write_bytes(plain.SerializeToString())
    findings = {f.subject: f for f in found(folder, "unreferenced")}
    assert {f.outcome for f in findings.values()} == {"not checkable"}
    assert findings["source.onnx"].message.startswith("is an ONNX model without EPContext nodes")


def test_models_of_a_folder_without_manifest_are_grouped_by_their_binary(tmp_path: Path) -> None:
    from epctx.verification.eps import Providers
    from epctx.verification.folder import open_folder
    from epctx.verification.layout import sharing_sets

    folder = pair(tmp_path)
    lone = model(context_node(ep_cache_context="alone_reference.bin"))
    (folder / "alone_ctx.onnx").write_bytes(lone.SerializeToString())
    (folder / "a_ctx.onnx").write_bytes(
        model(context_node(ep_cache_context="first_reference.bin")).SerializeToString()
    )
    sets = sharing_sets(open_folder(folder, providers=Providers()))
    assert [[m.file for m in models] for models in sets] == [
        ["first_ctx.onnx", "a_ctx.onnx", "second_ctx.onnx"],
        ["alone_ctx.onnx"],
    ]
