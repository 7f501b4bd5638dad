"""Session options: the spec's table, read from a mapping or from onnxruntime's object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnxruntime as ort
import pytest

from epctx.errors import UsageError
from epctx.inference.options import SessionConfig, lent

ENTRIES = {
    "ep.context_enable": "1",
    "ep.context_file_path": "out/m_ctx.onnx",
    "ep.context_embed_mode": "1",
    "ep.context_node_name_prefix": "pre_",
    "ep.context_model_external_initializers_file_name": "m.data",
    "ep.share_ep_contexts": "1",
    "ep.stop_share_ep_contexts": "1",
    "session.model_external_initializers_file_folder_path": "weights",
}
READ = SessionConfig(
    enable=True,
    file_path=Path("out/m_ctx.onnx"),
    embed_mode=1,
    node_name_prefix="pre_",
    initializers_file="m.data",
    share=True,
    stop_share=True,
    data_folder=Path("weights"),
)


def native(entries: dict[str, str]) -> ort.SessionOptions:
    options = ort.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return options


def test_every_entry_of_the_spec_is_read_from_a_mapping_and_from_onnxruntimes_object() -> None:
    assert SessionConfig.read(ENTRIES) == READ
    assert SessionConfig.read(native(ENTRIES)) == READ


def test_the_defaults_are_the_specs() -> None:
    defaults = SessionConfig(
        enable=False,
        file_path=None,
        embed_mode=0,
        node_name_prefix="",
        initializers_file=None,
        share=False,
        stop_share=False,
        data_folder=None,
    )
    given: list[Mapping[str, str] | ort.SessionOptions | None] = [None, {}, ort.SessionOptions()]
    for options in given:
        assert SessionConfig.read(options) == defaults


@pytest.mark.parametrize("name", ["ep.context_enable", "ep.context_embed_mode",
                                  "ep.share_ep_contexts", "ep.stop_share_ep_contexts"])  # fmt: skip
@pytest.mark.parametrize("value", ["2", "true", ""])
def test_a_flag_is_0_or_1(name: str, value: str) -> None:
    for options in ({name: value}, native({name: value})):
        with pytest.raises(UsageError, match=name.replace(".", r"\.")):
            SessionConfig.read(options)


def test_a_misspelt_ep_entry_is_an_error() -> None:
    with pytest.raises(UsageError, match=r'did you mean "ep\.share_ep_contexts"'):
        SessionConfig.read({"ep.share_ep_context": "1"})


def test_a_value_that_is_no_string_is_an_error() -> None:
    with pytest.raises(UsageError, match="not a string"):
        SessionConfig.read({"ep.share_ep_contexts": 1})


@pytest.mark.parametrize(
    "name",
    [
        "session.disable_prepacking",
        "session.kernel_dispatch_policy",
        "ep.context_prepare_only",
        "ep.cpu.qmoe_deferred_scale",
        "ep.cuda.matmul_nbits_m_chunk_size",
        "ep.qnnexecutionprovider.x",
    ],
)
def test_entries_of_onnxruntime_itself_pass(name: str) -> None:
    SessionConfig.read({name: "1"})


@pytest.mark.parametrize(
    "name",
    [
        "ep.context_source_model_path",
        "ep.enable_weightless",
        "ep.enable_weightless_ep_context_nodes",
        "ep.enable_weightless_mode",
    ],
)
def test_entries_for_models_without_weights_are_refused_with_their_reason(name: str) -> None:
    for options in ({name: "2"}, native({name: "2"})):
        with pytest.raises(UsageError, match=f"{name}.*is refused.*without weights"):
            SessionConfig.read(options)


FOLDER = "session.model_external_initializers_file_folder_path"


def test_a_mapping_becomes_new_options_for_each_session() -> None:
    with lent({"session.disable_prepacking": "1"}, {"ep.context_file_path": "x"}) as lend:
        one, two = lend(False), lend(True)
        assert one is not two
        for made in (one, two):
            assert made.get_session_config_entry("session.disable_prepacking") == "1"
            assert made.get_session_config_entry("ep.context_file_path") == "x"


def test_the_callers_own_options_are_used_and_put_back() -> None:
    mine = native({"session.disable_prepacking": "1"})
    with lent(mine, {FOLDER: "a"}) as lend:
        assert lend(False) is mine and mine.get_session_config_entry(FOLDER) == "a"
    assert mine.get_session_config_entry(FOLDER) == ""
    mine.add_session_config_entry(FOLDER, "b")
    with lent(mine, {FOLDER: "a"}):
        pass
    assert mine.get_session_config_entry(FOLDER) == "b"


def test_options_that_eps_are_added_to_are_copies() -> None:
    policy = "session.kernel_dispatch_policy"
    entries = {"session.intra_op.allow_spinning": "0", "ep.share_ep_contexts": "1", policy: "safe"}
    mine = native(entries)
    mine.intra_op_num_threads = 3
    mine.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with lent(mine, {FOLDER: "a"}, any_native=True) as lend:
        for made in (lend(False), lend(True)):
            assert made is not mine
            assert made.intra_op_num_threads == 3
            assert made.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            for name, value in entries.items():
                assert made.get_session_config_entry(name) == value
            assert made.get_session_config_entry(FOLDER) == "a"


def test_eps_that_the_caller_added_serve_native_parts_alone() -> None:
    mine = ort.SessionOptions()
    mine.add_provider("CPUExecutionProvider", {})
    with lent(mine, {}, any_native=True) as lend:
        assert lend(True) is mine
        assert not lend(False).has_providers()
