"""`epctx import`: flags of another tool, and the manifest for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from epctx import api
from epctx.commands.import_ import TOOL, parse
from epctx.error_codes import Code
from epctx.errors import EpctxError, UsageError
from tests.kit.building import mlp

PAIR = "prefill.onnx,decode.onnx"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: two models of the same weights."""
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp(batch=16), "prefill.onnx")
    onnx.save(mlp(batch=1), "decode.onnx")
    return tmp_path


def made(line: str) -> tuple[dict[str, Any], str]:
    """The manifest of a line, which is valid, and its text."""
    path = api.import_ep_weight_sharing(line, "m.yaml", force=True)
    assert not [found for found in api.validate(path).violations if found.code != Code.PROVIDER]
    text = path.read_text(encoding="utf-8")
    return yaml.safe_load(text), text


def test_models_that_share() -> None:
    manifest, text = made(
        'ep_weight_sharing_ctx_gen -e qnn -v -i "soc_model|60 vtcm_mb|8 htp_arch|0" ' + PAIR
    )
    assert text.startswith(
        '# From: ep_weight_sharing_ctx_gen -e qnn -v -i "soc_model|60 vtcm_mb|8 htp_arch|0" '
        "prefill.onnx,decode.onnx\n"
        "#   -i htp_arch: 0 is none, which is the default\n"
        "#   -v: it is `epctx build -v`\n"
    )
    assert manifest["models"] == {
        "prefill": {"path": "prefill.onnx"},
        "decode": {"path": "decode.onnx"},
    }
    assert manifest["execution_providers"] == {
        "qnn": {"provider": "QNNExecutionProvider", "options": {"soc_model": "60", "vtcm_mb": "8"}}
    }
    assert manifest["model_groups"] == {
        "main": {
            "models": ["prefill", "decode"],
            "execution_providers": ["qnn"],
            "sharing_groups": {"main": ["prefill", "decode"]},
        }
    }


def test_one_model_shares_with_nobody() -> None:
    manifest, _ = made('-i "soc_model|60" prefill.onnx')
    assert manifest["name"] == "prefill"
    assert "sharing_groups" not in manifest["model_groups"]["main"]


@pytest.mark.parametrize(
    ("entry", "group"),
    [
        ("ep.context_enable|1", {}),
        ("ep.context_embed_mode|0", {}),
        ("ep.context_file_path|x.onnx", {}),
        ("ep.context_node_name_prefix|_part1", {}),
        ("session.disable_cpu_ep_fallback|0", {}),
        ("session.disable_cpu_ep_fallback|1", {"partition": {"require_coverage": 1}}),
        (
            "ep.context_model_external_initializers_file_name|w.data",
            {"external_initializers": {"file": "{model}_w.data", "size_threshold": 0}},
        ),
        (
            "session.qdq_matmulnbits_accuracy_level|4",
            {"session_options": {"session.qdq_matmulnbits_accuracy_level": "4"}},
        ),
    ],
)
def test_session_entries(entry: str, group: dict[str, object]) -> None:
    manifest, _ = made(f'-i "soc_model|60" -C "{entry}" {PAIR}')
    found = manifest["model_groups"]["main"]
    assert {key: found[key] for key in list(found)[3:]} == group


def test_a_prefix_is_kept_where_the_ep_keeps_it() -> None:
    manifest, _ = made(f'-e openvino -C "ep.context_node_name_prefix|_part1" {PAIR}')
    assert manifest["model_groups"]["main"]["node_name_prefix"] == "_part1"


@pytest.mark.parametrize(
    "option",
    ["backend_path|/sdk/libQnnHtp.so", r"backend_path|C:\sdk\QnnHtp.dll", "vtcm_mb|0",
     "enable_htp_weight_sharing|1"],
)  # fmt: skip
def test_options_that_a_manifest_does_without_are_told(option: str) -> None:
    manifest, text = made(f'-i "soc_model|60 {option}" {PAIR}')
    assert manifest["execution_providers"]["qnn"]["options"] == {"soc_model": "60"}
    assert f"#   -i {option.partition('|')[0]}: " in text


def plugin(**entries: object) -> None:
    registered = {"ep_library_registration_name": "x", "ep_library_path": "libep.so"}
    Path("ep.json").write_text(json.dumps(registered | entries), encoding="utf-8")
    Path("libep.so").touch()


def test_a_plugin() -> None:
    plugin(selected_ep_name="MyEP", default_ep_options={"speed": "2"})
    manifest, text = made(f"-p ep.json -i 'soc_model|60 a\x07|1' {PAIR}")
    assert manifest["execution_providers"] == {
        "myep": {
            "provider": "MyEP",
            "options": {"plugin.library": "libep.so", "speed": "2"},
            "allow_unknown_options": True,
        }
    }
    assert "#   -i a?: " in text
    assert "#   -i soc_model: ep_weight_sharing_ctx_gen passes it over beside -p" in text


def test_a_plugin_that_epctx_knows() -> None:
    plugin(selected_ep_name="QNNExecutionProvider", default_ep_options={"soc_model": "60"})
    manifest, text = made(f"-p ep.json {PAIR}")
    assert manifest["execution_providers"]["qnn"]["options"] == {"soc_model": "60"}
    assert "ep_library_path: the installed library of QNNExecutionProvider is taken" in text


def test_what_no_comment_can_hold() -> None:
    _, text = made("-i 'soc_model|60\nvtcm_mb|8' " + PAIR + " -C 'ep.context_enable|\x07'")
    assert text.partition("\n")[0].endswith(
        '-i "soc_model|60 vtcm_mb|8" prefill.onnx,decode.onnx -C "ep.context_enable|?"'
    )


@pytest.mark.parametrize(
    ("line", "code", "where"),
    [
        (f'-i "sco_model|60" {PAIR}', Code.UNKNOWN_OPTION, "-i sco_model"),
        (f'-i "soc_model|sc1" {PAIR}', Code.UNKNOWN_SOC, "-i soc_model"),
        (f'-i "backend_path|libQnnCpu.so" {PAIR}', Code.USAGE, "-i backend_path"),
        (f'-i "backend_type|cpu" {PAIR}', Code.WRONG_OPTION_VALUE, "-i backend_type"),
        (f'-C "session.foo|1" {PAIR}', Code.UNKNOWN_KEY, "-C session.foo"),
        (f"-e vitisai {PAIR}", Code.SHARING, "model_groups.main.sharing_groups"),
        ("gone.onnx", Code.NO_SUCH_PATH, "gone.onnx"),
        (f"-p gone.json {PAIR}", Code.USAGE, "gone.json"),
        (f"-p prefill.onnx {PAIR}", Code.USAGE, "prefill.onnx"),
    ],
)
def test_what_is_wrong_is_told_by_its_flag(line: str, code: Code, where: str) -> None:
    with pytest.raises(EpctxError) as raised:
        api.import_ep_weight_sharing(line, "m.yaml")
    told = (raised.value.where or "").removeprefix("ep_weight_sharing_ctx_gen: ")
    assert (raised.value.code, told) == (code, where)
    assert not Path("m.yaml").exists()


def test_devices_of_a_plugin_are_no_name() -> None:
    plugin(selected_ep_device_indices=[0])
    with pytest.raises(EpctxError, match="does not name its EP"):
        api.import_ep_weight_sharing(f"-p ep.json {PAIR}")


def test_a_manifest_that_is_there_is_kept() -> None:
    path = api.import_ep_weight_sharing(PAIR)
    assert path == Path("epctx.yaml")
    with pytest.raises(EpctxError) as raised:
        api.import_ep_weight_sharing(PAIR)
    assert raised.value.code == Code.IN_THE_WAY


@pytest.mark.usefixtures("jobs_inline")
def test_the_manifest_builds(folder: Path) -> None:
    """By the EP that is always here; QNN's is built by docs/from/ep-weight-sharing.md."""
    plugin(selected_ep_name="ReferenceExecutionProvider")
    api.import_ep_weight_sharing(f"-p ep.json {PAIR}", "m.yaml")
    (group,) = api.build("m.yaml", out=folder / "dist").groups
    names = [file.name for file in group.files if file.name != "SHA256SUMS"]
    assert sorted(names) == ["decode_ctx.onnx", "prefill_ctx.onnx", "prefill_reference.bin"]


@pytest.mark.parametrize(
    "content", [b"{}", b"[]", b"\xff", b'{"a": ' * 100_000, b" " * (1 << 21)], ids=range(5)
)
def test_what_is_no_json_of_a_plugin(content: bytes) -> None:
    Path("ep.json").write_bytes(content)
    with pytest.raises(EpctxError, match="is not a plugin's JSON file"):
        api.import_ep_weight_sharing(f"-p ep.json {PAIR}")


OPTIONS = '-i "soc_model|60 htp_graph_finalization_optimization_mode|3"'
ENTRIES = '-C "ep.context_node_name_prefix|_part1"'
README = f"./{TOOL} -e qnn -v {OPTIONS} /mnt/c/model1.onnx,/mnt/c/model2.onnx"
HELP = f"./{TOOL} -e qnn {OPTIONS} {ENTRIES} ./model1.onnx,./model2.onnx"


def test_the_example_of_the_help() -> None:
    flags = parse(HELP)
    assert flags.entries == {"ep.context_node_name_prefix": "_part1"}
    assert not flags.verbose and flags.plugin is None


@pytest.mark.parametrize(
    ("line", "models"),
    [
        ("a.onnx", ("a.onnx",)),
        ("a.onnx,b.onnx,c.onnx -e qnn", ("a.onnx", "b.onnx", "c.onnx")),
        (" -v a.onnx", ("a.onnx",)),
        ("./onnxruntime_qnn_ctx_gen -v a.onnx", ("a.onnx",)),
        ("-ve qnn -- a.onnx", ("a.onnx",)),
        ("-eqnn -i'soc_model|60' a.onnx", ("a.onnx",)),
        ("ep_weight_sharing_ctx_gen \\\n  -e qnn \\\r\n  a.onnx", ("a.onnx",)),
        (r"C:\tools\ep_weight_sharing_ctx_gen.exe C:\m\a.onnx", (r"C:\m\a.onnx",)),
        ('"my models/a.onnx,my models/b.onnx"', ("my models/a.onnx", "my models/b.onnx")),
    ],
)
def test_models(line: str, models: tuple[str, ...]) -> None:
    assert parse(line).models == models


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("qnn", "QNNExecutionProvider"),
        ("openvino", "OpenVINOExecutionProvider"),
        ("tensorrt", "TensorrtExecutionProvider"),
        ("vitisai", "VitisAIExecutionProvider"),
    ],
)
def test_eps(name: str, provider: str) -> None:
    assert parse(f"-e {name} a.onnx").provider == provider
    assert parse("a.onnx").provider == "QNNExecutionProvider"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "no model is named"),
        ("-e qnn", "no model is named"),
        ("-x a.onnx", "there is no flag -x"),
        ("-o out a.onnx", "there is no flag -o"),
        ("--help", "there is no flag -help"),
        ("a.onnx -i", "option -i requires argument"),
        ("-h", "-h only prints help"),
        ("-e cuda a.onnx", "-e cuda is not an EP of ep_weight_sharing_ctx_gen"),
        ("-i soc_model a.onnx", "-i: 'soc_model' is not a pair"),
        ("-C '|1' a.onnx", "-C: '|1' is not a pair"),
        ('-C "a|1 a|2" x.onnx', "-C: a is given twice"),
        ("a.onnx b.onnx", "'a.onnx b.onnx' are 2 words"),
        ("a.onnx, b.onnx", "'a.onnx, b.onnx' are 2 words"),
        ("a.onnx,,b.onnx", "'a.onnx,,b.onnx' has a comma too many"),
        ("-i 'soc_model|60 a.onnx", "a quotation mark is not closed"),
    ],
)
def test_what_the_tool_does_not_take(line: str, told: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(line)
    assert raised.value.what.startswith(told) and raised.value.code == Code.COMMAND_LINE
    assert raised.value.where == "ep_weight_sharing_ctx_gen"


@given(st.text(alphabet="-eipCvhz|,.'\"\\ \n=qnab1", max_size=40))
@example("-e ''")
def test_any_line_is_parsed_or_refused(line: str) -> None:
    try:
        flags = parse(line)
    except UsageError:
        return
    assert flags.models and all(flags.models)
