"""Session options: the spec's table, read from a mapping or from onnxruntime's object."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest

from epctx.errors import UsageError
from epctx.runtime.options import SessionConfig, for_session

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
    for options in (None, {}, ort.SessionOptions()):
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
        SessionConfig.read({"ep.share_ep_contexts": 1})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "name", ["session.disable_prepacking", "ep.qnnexecutionprovider.x", "ep.enable_weightless"]
)
def test_entries_of_onnxruntime_itself_pass(name: str) -> None:
    SessionConfig.read({name: "1"})


def test_a_mapping_becomes_onnxruntimes_options_for_a_session() -> None:
    with for_session({"session.disable_prepacking": "1"}, {"ep.context_file_path": "x"}) as made:
        assert made.get_session_config_entry("session.disable_prepacking") == "1"
        assert made.get_session_config_entry("ep.context_file_path") == "x"


def test_the_callers_own_options_are_used_and_put_back() -> None:
    folder = "session.model_external_initializers_file_folder_path"
    mine = native({"session.disable_prepacking": "1"})
    mine.intra_op_num_threads = 1
    with for_session(mine, {folder: "a"}) as made:
        assert made is mine and made.get_session_config_entry(folder) == "a"
    assert mine.get_session_config_entry(folder) == ""
    mine.add_session_config_entry(folder, "b")
    with for_session(mine, {folder: "a"}):
        pass
    assert mine.get_session_config_entry(folder) == "b"
