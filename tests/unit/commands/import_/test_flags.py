"""Command lines of `ep_weight_sharing_ctx_gen`, as its help, its README and people write them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epctx.commands.import_ import TOOL, parse
from epctx.error_codes import Code
from epctx.errors import UsageError

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
        ("-h", "-h asks for help"),
        ("-e cuda a.onnx", "-e cuda is no EP of ep_weight_sharing_ctx_gen"),
        ("-i soc_model a.onnx", "-i: 'soc_model' is no pair"),
        ("-C '|1' a.onnx", "-C: '|1' is no pair"),
        ('-C "a|1 a|2" x.onnx', "-C: a is there twice"),
        ("a.onnx b.onnx", "'a.onnx b.onnx' are 2 words"),
        ("a.onnx, b.onnx", "'a.onnx, b.onnx' are 2 words"),
        ("a.onnx,,b.onnx", "'a.onnx,,b.onnx' has a comma too many"),
        ("-i 'soc_model|60 a.onnx", "a quotation mark has no second one"),
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
