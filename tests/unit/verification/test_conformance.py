"""Conformance of models and of whole folders."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from epctx.graph.epcontext import PIECES
from epctx.manifest import Pieces
from epctx.verification.conformance import CHECKS
from epctx.verification.findings import Finding
from tests.kit import folders
from tests.kit.folders import context_node, found, group, model, report

POSIX = pytest.mark.needs("POSIX", "links need a privilege, FIFOs POSIX")


def fault(folder: Path, check: str, **request: object) -> str:
    """The message of the only failure of `check`."""
    (finding,) = found(folder, check, "fail", **request)
    assert finding.remedy
    return finding.message


def made(tmp_path: Path, *nodes: onnx.NodeProto) -> Path:
    return folders.write(tmp_path, model(*nodes), sums=False)


def test_a_right_folder_passes_every_check(tmp_path: Path) -> None:
    findings = report(folders.write(tmp_path), policies=("conformance",)).findings
    assert {f.outcome for f in findings} == {"pass"}
    words = {check.word for check in CHECKS} - {"prefix", "canonical"}
    assert {f.check for f in findings} == words | {"sharing", "unreferenced"}


# --- readable ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"garbage\xff\xff", "is not an ONNX model"),
        (b"\x08\x0a", "it has no graph or no opset imports"),
    ],
)
def test_what_is_no_model_is_a_finding(tmp_path: Path, content: bytes, why: str) -> None:
    folder = folders.write(tmp_path, sums=False)
    (folder / "bad_ctx.onnx").write_bytes(content)
    assert why in fault(folder, "readable")


def test_a_truncated_model_is_a_finding(tmp_path: Path) -> None:
    folder = folders.write(tmp_path, sums=False)
    path = folder / "m_ctx.onnx"
    whole = path.read_bytes()
    for length in range(1, len(whole), 7):
        path.write_bytes(whole[:length])
        findings = report(folder).findings
        assert any(f.outcome == "fail" and f.subject == "m_ctx.onnx" for f in findings)


@POSIX
def test_a_fifo_among_the_models_is_not_waited_for(tmp_path: Path) -> None:
    folder = folders.write(tmp_path, sums=False)
    os.mkfifo(folder / "pipe_ctx.onnx")
    assert fault(folder, "readable") == "it is not a regular file"


def test_a_file_beyond_2_gb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    folder = folders.write(tmp_path, sums=False)
    with (folder / "big_ctx.onnx").open("wb") as stream:
        stream.truncate(2**31)
    assert "beyond the 2 GB" in fault(folder, "readable")


def test_what_onnx_runtime_does_not_load(tmp_path: Path) -> None:
    broken = model()
    broken.graph.node[1].input[0] = "nothing"
    folder = folders.write(tmp_path, broken, sums=False)
    assert "ONNX Runtime does not load it: Invalid model. Node input 'nothing'" in fault(
        folder, "well_formed"
    )


def test_what_onnx_forbids_and_onnx_runtime_takes_is_no_fault(tmp_path: Path) -> None:
    odd = model()
    del odd.opset_import[1]
    odd.graph.output[0].ClearField("type")
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(odd)
    folder = folders.write(tmp_path, odd, sums=False)
    assert not found(folder, "well_formed", "fail")


@POSIX
def test_onnx_runtime_opens_no_data_that_may_not_be_opened(tmp_path: Path) -> None:
    odd = model(initializers=[external("pipe")])
    del odd.opset_import[1]
    folder = folders.write(tmp_path, odd, sums=False)
    os.mkfifo(folder / "pipe")
    assert "onnx.checker refuses it" in fault(folder, "well_formed")


def test_a_newer_ir_version_than_the_checker_knows(tmp_path: Path) -> None:
    newer = model()
    newer.ir_version = onnx.IR_VERSION + 1
    folder = folders.write(tmp_path, newer, sums=False)
    (finding,) = found(folder, "well_formed")
    assert finding.outcome == "not checkable" and "newer than the installed onnx" in finding.message


def test_a_model_that_nothing_was_compiled_in(tmp_path: Path) -> None:
    plain = model(helper.make_node("Neg", ["x"], ["y"], name="neg"))
    folder = folders.write(tmp_path, plain, sums=False)
    message = fault(folder, "ep_context", models=("m_ctx.onnx",))
    assert message == "has no EPContext node: nothing in it was compiled"
    assert found(folder, "ep_context", "fail", group=folders.group())
    without_eps = folders.group(execution_providers=())
    assert not found(folder, "ep_context", "fail", group=without_eps)


# --- attributes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"embed_mode": 2}, "2 is neither 0 nor 1"),
        ({"main_context": -1}, "-1 is neither 0 nor 1"),
        ({"embed_mode": "0"}, "it is STRING, not INT"),
        ({"source": 7}, "it is INT, not STRING"),
        ({"ep_cache_context": 1.5}, "it is FLOAT, not STRING"),
        ({"max_size": -5}, "-5 is not a size in bytes"),
        ({"notes": b"\xff\xfe"}, "it is not UTF-8 text"),
        ({"ep_cache_context": b"\xff.bin"}, "it is not UTF-8 text"),
    ],
)
def test_an_attribute_outside_the_op_schema(
    tmp_path: Path, attributes: dict[str, Any], words: str
) -> None:
    message = fault(made(tmp_path, context_node(**attributes)), "attributes")
    assert message.startswith("node 'main_0': attribute ") and message.endswith(words)


def test_an_unknown_attribute_gets_a_suggestion(tmp_path: Path) -> None:
    message = fault(made(tmp_path, context_node(embed_mod=0)), "attributes")
    assert message == (
        "node 'main_0': `embed_mod` is not in the op schema, did the maker mean `embed_mode`?"
    )
    unnamed = context_node(embed_mod=0)
    unnamed.name = ""
    message = fault(made(tmp_path, unnamed), "attributes")
    assert message.startswith("the EPContext node that makes 'y': `embed_mod` is not in")


def test_an_attribute_of_an_unknown_ep_is_its_own_business(tmp_path: Path) -> None:
    folder = made(tmp_path, context_node(source="SomebodyElse", is_special=1))
    (finding,) = found(folder, "attributes")
    assert finding.outcome == "not checkable"
    assert "only the EP can say what it means" in finding.message


def test_defaults_are_written_in_models_of_ours(tmp_path: Path) -> None:
    ours = model(context_node(embed_mode=None, ep_cache_context=b"payload"))
    ours.producer_name = "epctx"
    folder = folders.write(tmp_path, ours, sums=False)
    assert fault(folder, "attributes") == "node 'main_0': `embed_mode` is not written"
    ours.producer_name = "other"
    assert not found(folders.write(tmp_path, ours, sums=False), "attributes", "fail")


def test_the_source_model_is_named_without_its_folder(tmp_path: Path) -> None:
    for leak in ("/home/me/m.onnx", "C:\\models\\m.onnx"):
        folder = made(tmp_path, context_node(onnx_model_filename=leak))
        assert fault(folder, "attributes").endswith(f"`onnx_model_filename` is a path: {leak}")


def test_a_node_without_source_or_of_an_unknown_one(tmp_path: Path) -> None:
    assert "has no `source`" in fault(made(tmp_path, context_node(source=None)), "source")
    (finding,) = found(made(tmp_path, context_node(source="Alien")), "source")
    assert finding.outcome == "not checkable" and "'Alien'" in finding.message
    (finding,) = found(
        made(tmp_path, context_node(source="Alien")), "source", group=folders.group()
    )
    assert finding.outcome == "fail"
    assert "have the sources: reference" in finding.remedy


# --- ep_cache_context ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("../m_reference.bin", "it has `..`"),
        ("/etc/hostname", "it is absolute"),
        ("C:/m.bin", "it is absolute"),
        ("sub\\m.bin", "it has a backslash"),
        ("gone.bin", "it does not exist"),
        ("M_Reference.bin", "it does not exist"),
        (".", "it names a folder"),
        ("", "is empty"),
    ],
)
def test_a_context_path_that_cannot_be_used(tmp_path: Path, path: str, why: str) -> None:
    message = fault(made(tmp_path, context_node(ep_cache_context=path)), "ep_cache_context")
    assert message.startswith("node 'main_0': ") and why in message


def without_binaries(folder: Path) -> list[Finding]:
    """What conformance finds beside the binaries: those of these folders have no graphs."""
    found = report(folder, policies=("conformance",)).findings
    return [finding for finding in found if finding.check != "context_binary"]


def test_a_context_in_a_subfolder_is_fine(tmp_path: Path) -> None:
    folder = made(tmp_path, context_node(ep_cache_context="sub/c.bin"))
    (folder / "sub").mkdir()
    (folder / "m_reference.bin").rename(folder / "sub" / "c.bin")
    assert {f.outcome for f in without_binaries(folder)} == {"pass"}


@POSIX
def test_a_context_that_is_a_link_a_fifo_or_a_folder(tmp_path: Path) -> None:
    folder = made(tmp_path)
    binary = folder / "m_reference.bin"
    binary.rename(folder / "real.bin")
    binary.symlink_to("real.bin")
    assert "is a link" in fault(folder, "ep_cache_context")
    binary.unlink()
    os.mkfifo(binary)
    assert "it is not a regular file" in fault(folder, "ep_cache_context")
    binary.unlink()
    binary.mkdir()
    assert "it is a folder" in fault(folder, "ep_cache_context")


def test_an_empty_context(tmp_path: Path) -> None:
    folder = made(tmp_path)
    (folder / "m_reference.bin").write_bytes(b"")
    assert "the file is empty" in fault(folder, "ep_cache_context")
    embedded = context_node(embed_mode=1, ep_cache_context=b"")
    assert "`ep_cache_context` is empty" in fault(made(tmp_path, embedded), "ep_cache_context")
    none = context_node(ep_cache_context=None)
    assert "`ep_cache_context` is empty" in fault(made(tmp_path, none), "ep_cache_context")


def test_embed_mode_against_the_payload(tmp_path: Path) -> None:
    named = context_node(embed_mode=1)
    assert "is the name of a file" in fault(made(tmp_path, named), "ep_cache_context")
    payload = context_node(embed_mode=1, ep_cache_context=b"\x89payload\xff")
    folder = made(tmp_path, payload)
    assert not found(folder, "ep_cache_context", "fail")
    message = fault(folder, "ep_cache_context", group=folders.group(embed_mode=0))
    assert message == "node 'main_0': embed_mode is 1, the manifest asks for 0"


# --- main_context --------------------------------------------------------------------------------


def second(**attributes: Any) -> onnx.NodeProto:
    given = {"main_context": 0, "ep_cache_context": None, **attributes}
    node = context_node("part_1", **given)
    node.input[0], node.output[0] = "y", "w"
    return node


def two_nodes(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    changed = model(*nodes)
    changed.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [1, 4]))
    changed.graph.node[-1].input[0] = "w"
    return changed


def test_a_part_finds_its_context_in_a_main_node_of_the_same_source(tmp_path: Path) -> None:
    right = two_nodes(context_node(), second())
    assert not found(folders.write(tmp_path, right, sums=False), "main_context", "fail")
    wrong = two_nodes(context_node(), second(source="QNN"))
    message = fault(folders.write(tmp_path, wrong, sums=False), "main_context")
    assert message.startswith(
        "node 'part_1' has main_context 0, and no other node of the source 'QNN'"
    )


def test_a_part_may_be_in_the_context_of_a_model_that_shares(tmp_path: Path) -> None:
    alone = context_node(main_context=0, ep_cache_context=None)
    folder = made(tmp_path, alone)
    assert fault(folder, "main_context")
    (folder / "first_ctx.onnx").write_bytes(model().SerializeToString())
    assert not found(folder, "main_context", "fail")


def test_a_part_that_embeds_a_payload(tmp_path: Path) -> None:
    odd = context_node(main_context=0, embed_mode=1, ep_cache_context=b"payload")
    message = fault(made(tmp_path, odd), "ep_cache_context")
    assert message == "node 'main_0': main_context is 0, yet it embeds a payload"


# --- names ---------------------------------------------------------------------------------------


def test_node_names_are_unique_and_present(tmp_path: Path) -> None:
    twice = two_nodes(context_node(), second())
    twice.graph.node[1].name = "main_0"
    assert fault(folders.write(tmp_path, twice, sums=False), "names") == (
        "two nodes are named 'main_0'"
    )
    assert "has no name; its outputs are ['y']" in fault(made(tmp_path, context_node("")), "names")


def test_two_nodes_of_one_partition(tmp_path: Path) -> None:
    clash = second(main_context=1, ep_cache_context="m_reference.bin", partition_name="main_0")
    message = fault(folders.write(tmp_path, two_nodes(context_node(), clash), sums=False), "names")
    assert message == "two nodes name the partition 'main_0' of 'm_reference.bin'"


def test_names_inside_control_flow_count(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Neg", ["y"], ["n"], name="main_0")],
        "body",
        [],
        [helper.make_tensor_value_info("n", TensorProto.FLOAT, [1, 4])],
    )
    both = model(
        context_node(),
        helper.make_node("If", ["c"], ["i"], name="if", then_branch=body, else_branch=body),
    )
    both.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    folder = folders.write(tmp_path, both, sums=False)
    messages = {f.message for f in found(folder, "names", "fail")}
    assert messages == {"two nodes are named 'main_0'"}
    body.node[0].name = "n"  # as tf2onnx has it: nodes of bodies are named alike
    for branch in both.graph.node[1].attribute:
        branch.g.CopyFrom(body)
    assert not found(folders.write(tmp_path / "own", both, sums=False), "names", "fail")


def test_the_prefix_is_on_node_and_partition(tmp_path: Path) -> None:
    folder = made(tmp_path, context_node("eye_main"))
    asked = folders.group(node_name_prefix="eye_")
    (told,) = found(folder, "prefix", group=asked)
    assert told.outcome == "pass"
    assert told.message == "the prefix 'eye_' is in node name, partition name, graph name"
    other = folders.group(node_name_prefix="ear_")
    messages = [f.message for f in found(folder, "prefix", "fail", group=other)]
    assert messages == [
        "node 'eye_main': its name 'eye_main' does not begin with the prefix 'ear_'",
        "node 'eye_main': its partition_name 'eye_main' does not begin with the prefix 'ear_'",
    ]
    assert not found(folder, "prefix", group=folders.group())


# --- types ---------------------------------------------------------------------------------------


def clear_value_info(changed: onnx.ModelProto) -> None:
    del changed.graph.value_info[:]


def clear_shape(changed: onnx.ModelProto) -> None:
    changed.graph.value_info[0].type.tensor_type.ClearField("shape")


def make_string(changed: onnx.ModelProto) -> None:
    changed.graph.value_info[0].type.tensor_type.elem_type = TensorProto.STRING


def make_input_complex(changed: onnx.ModelProto) -> None:
    changed.graph.input[0].type.tensor_type.elem_type = TensorProto.COMPLEX64


def make_sequence(changed: onnx.ModelProto) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [1]))
    changed.graph.value_info[0].type.CopyFrom(kind)


def drop_output(changed: onnx.ModelProto) -> None:
    del changed.graph.node[0].output[:]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (clear_value_info, "its output 'y' has no type"),
        (clear_shape, "its output 'y' has no shape"),
        (make_string, "its output 'y' is of type string, which the op does not make"),
        (make_input_complex, "its input 'x' is of type complex64, which the op does not take"),
        (make_sequence, "its output 'y' is of type undefined, which the op does not make"),
        (drop_output, "node 'main_0' (com.microsoft::EPContext) has no output"),
    ],
)
def test_the_edges_of_an_epcontext_node(
    tmp_path: Path, change: Callable[[onnx.ModelProto], None], words: str
) -> None:
    changed = model()
    change(changed)
    assert words in fault(folders.write(tmp_path, changed, sums=False), "types")


# --- self-contained ------------------------------------------------------------------------------


def external(location: str, *, length: int = 16, **keys: str) -> onnx.TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "length": str(length), **keys}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def with_data(tmp_path: Path, tensor: onnx.TensorProto) -> Path:
    folder = folders.write(tmp_path, model(initializers=[tensor]), sums=False)
    (folder / "m.data").write_bytes(bytes(16))
    return folder


def test_external_data_of_the_folder_is_fine(tmp_path: Path) -> None:
    folder = with_data(tmp_path, external("m.data"))
    assert {f.outcome for f in without_binaries(folder)} == {"pass"}


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (external("../m.data"), "its external data '../m.data': it has `..`"),
        (external("/m.data"), "its external data '/m.data': it is absolute"),
        (external("gone.data"), "its external data 'gone.data': it does not exist"),
        (external("m.data", offset="4"), "reaches to byte 20 of"),
        (external("m.data", length=12), "12 bytes of external data, its type and shape need 16"),
        (external("m.data", basepath="/x"), "key 'basepath': ONNX Runtime does not load"),
    ],
)
def test_external_data_that_does_not_travel(
    tmp_path: Path, tensor: onnx.TensorProto, words: str
) -> None:
    messages = [f.message for f in found(with_data(tmp_path, tensor), "self_contained", "fail")]
    assert any(words in message for message in messages)


@POSIX
def test_external_data_that_is_a_link(tmp_path: Path) -> None:
    folder = with_data(tmp_path, external("m.data"))
    (folder / "m.data").rename(folder / "real.data")
    (folder / "m.data").symlink_to("real.data")
    assert fault(folder, "self_contained") == "its external data 'm.data': 'm.data' is a link"


def test_a_group_works_where_it_is_copied(tmp_path: Path) -> None:
    folder = with_data(tmp_path / "here", external("m.data"))
    shutil.copytree(folder, tmp_path / "there")
    shutil.rmtree(folder)
    assert not found(tmp_path / "there", "self_contained", "fail")


# --- canonical -----------------------------------------------------------------------------------


def test_what_we_made_is_in_canonical_form(tmp_path: Path) -> None:
    import onnx_ir as ir

    from epctx.graph.serde import canonical

    content = canonical.serialize(ir.serde.deserialize_model(model()))
    folder = folders.write(tmp_path, sums=False)
    (folder / "m_ctx.onnx").write_bytes(content)
    assert [f.outcome for f in found(folder, "canonical")] == ["pass"]
    edited = onnx.ModelProto.FromString(content)
    edited.doc_string = "a note"
    (folder / "m_ctx.onnx").write_bytes(edited.SerializeToString())
    assert "is not in canonical form" in fault(folder, "canonical")
    edited.producer_name = "somebody"
    (folder / "m_ctx.onnx").write_bytes(edited.SerializeToString())
    assert not found(folder, "canonical")


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
    assert "'second_ctx.onnx' belongs to no model of the group" in messages(
        folder, "files", group=asked
    )


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
    wrong = "'second_ctx.onnx' has the wrong number of pieces: 1, not 2"
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
    from epctx.verification.folder import Providers, open_folder, sharing_sets

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
