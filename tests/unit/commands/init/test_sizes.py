"""Sizes that a starter manifest proposes: the model runs at them, whatever it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from epctx.commands.init import sizes
from epctx.commands.init.options import SizeOptions
from epctx.commands.init.sizes import Sized
from epctx.errors import ModelError
from epctx.graph import inputs
from tests.kit import command_line
from tests.kit.onnx_text import proto


def sized(
    folder: Path,
    body: str,
    size_options: SizeOptions | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Sized:
    model = proto(body)
    onnx.helper.set_model_props(model, dict(metadata or {}))
    onnx.save(model, folder / "m.onnx")
    return sizes.find(folder / "m.onnx", model, inputs.specs(model), size_options or SizeOptions())


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("g (float[batch, 3] x) => (float[batch, 3] y) { y = Relu(x) }", {"batch": 1}),
        ("g (float[unk__7, 9] x) => (float[unk__7, 9] y) { y = Relu(x) }", {"unk__7": 1}),
        ("g (int64[N, seq_len] x) => (int64[N, seq_len] y) { y = Abs(x) }",
         {"N": 1, "seq_len": 64}),
        ("g (float[N, seq_len] x) => (float[N, seq_len] y) { y = Relu(x) }",
         {"N": 1, "seq_len": 512}),
        ("g (float[1, height, width] x) => (float[1, height, width] y) { y = Relu(x) }",
         {"height": 224, "width": 224}),
        # By their places alone: images, a state of two layers, sound, text.
        ("g (float[d0, 3, d1, d2] x) => (float[d0, 3, d1, d2] y) { y = Relu(x) }",
         {"d0": 1, "d1": 224, "d2": 224}),
        ("g (float[d0, d1, d2, 3] x) => (float[d0, d1, d2, 3] y) { y = Relu(x) }",
         {"d0": 1, "d1": 224, "d2": 224}),
        ("g (float[d0, d1, d2, d3] x) => (float[d0, d1, d2, d3] y) { y = Relu(x) }",
         {"d0": 1, "d1": 3, "d2": 224, "d3": 224}),
        ("g (float[2, d, 128] state) => (float[2, d, 128] y) { y = Relu(state) }", {"d": 1}),
        ("g (float[seq_len, 576] x) => (float[seq_len, 576] y) { y = Relu(x) }", {"seq_len": 64}),
        ("g (float[1, d, 128] x) => (float[1, d, 128] y) { y = Relu(x) }", {"d": 64}),
        ("g (float[d0, d1] audio) => (float[d0, d1] y) { y = Relu(audio) }",
         {"d0": 1, "d1": 16000}),
        ("g (int64[d0, d1] ids) => (int64[d0, d1] y) { y = Abs(ids) }", {"d0": 1, "d1": 64}),
        ("g (float[D, K, 8] x, float[D] z) => (float[D, K, 8] y, float[D] a) "
         "{ y = Relu(x) a = Relu(z) }", {"D": 1, "K": 64}),
        # What follows from others.
        ("g (float[batch_plus_1] x, float[batch] n) => (float[batch_plus_1] y, float[batch] z) "
         "{ y = Relu(x) z = Relu(n) }", {"batch_plus_1": 2, "batch": 1}),
        ("g (float[1, past_seq_len] p, float[1, seq_len] x, float[1, total_seq_len] m) "
         "=> (float[1, total_seq_len] y) { k = Concat<axis = 1>(p, x) y = Add(k, m) }",
         {"past_seq_len": 512, "seq_len": 512, "total_seq_len": 1024}),
        # A line of text, for a model that does not run at the usual side.
        ("g (float[1, 1, h, w] x) => (float[1, 1, k, w] y) <float[1, 1, 1, 48] a> "
         "{ y = MatMul(a, x) }", {"h": 48, "w": 320}),
        # Names suggest 64, and the weights allow nothing but 5.
        ("g (float[1, length] x) => (float[1, 1] y) <float[5, 1] w = {1, 2, 3, 4, 5}> "
         "{ y = MatMul(x, w) }", {"length": 5}),
    ],
)  # fmt: skip
def test_they_are_what_names_and_places_suggest_where_the_model_runs_at_them(
    tmp_path: Path, body: str, wanted: dict[str, int]
) -> None:
    body = body.replace(" a> ", f" a = {{{', '.join(['1'] * 48)}}}> ")
    assert sized(tmp_path, body) == Sized(sizes=wanted, guessed=tuple(wanted))


IMAGE = "g (float[b, 3, h, w] x) => (float[b, 3, h, w] y) { y = Relu(x) }"


def test_they_are_what_is_said_then_those_of_files_then_of_metadata(tmp_path: Path) -> None:
    noted = {"imgsz": "[320, 640]", "batch": "1"}
    assert sized(tmp_path, IMAGE, None, noted) == Sized(sizes={"b": 1, "h": 320, "w": 640})
    files = []
    for name, shape in (("other.npz", (9,)), ("fits.npz", (2, 3, 48, 32))):
        files.append(tmp_path / name)
        np.savez(files[-1], x=np.zeros(shape, np.float32))
    given = SizeOptions(files=tuple(files))
    assert sized(tmp_path, IMAGE, given, noted).sizes == {"b": 2, "h": 48, "w": 32}
    given = SizeOptions(files=tuple(files), dimensions={"h": 96, "nobody": 3})
    assert sized(tmp_path, IMAGE, given, noted).sizes == {"b": 2, "h": 96, "w": 32}
    whole = SizeOptions(shapes={"x": (5, 3, 7, 8)})
    assert sized(tmp_path, IMAGE, whole) == Sized(sizes={"b": 5, "h": 7, "w": 8})
    part = sized(tmp_path, IMAGE, SizeOptions(dimensions={"h": 96}))
    assert part == Sized(sizes={"b": 1, "h": 96, "w": 224}, guessed=("b", "w"))


def test_metadata_with_too_many_digits_is_passed_over(tmp_path: Path) -> None:
    noted = {"imgsz": f"[{'9' * 5000}, 640]", "batch": "9" * 5000}
    guessed = {"b": 1, "h": 224, "w": 224}
    assert sized(tmp_path, IMAGE, None, noted) == Sized(sizes=guessed, guessed=tuple(guessed))


def test_who_is_asked_may_say_another_and_the_others_are_found_beside_it(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    def ask(name: str, guess: int) -> int:
        asked.append((name, guess))
        return 6 if name == "p" else guess

    body = "g (float[p] x, float[q] z) => (float[p] y) { y = Add(x, z) }"
    found = sized(tmp_path, body, SizeOptions(ask=ask))
    assert asked == [("p", 512), ("q", 512)]
    assert found.sizes["p"] == 6 and found.sizes["q"] in (1, 6) and found.guessed == ("q",)


def test_those_that_depend_on_each_other_are_searched_for(tmp_path: Path) -> None:
    body = (
        "g (float[1, a_len] a, float[1, b_len] x, float[1, c_len] mask) "
        "=> (float[1, c_len] y) { k = Concat<axis = 1>(a, x) y = Add(k, mask) }"
    )
    known = sized(tmp_path, body).sizes
    assert known["c_len"] in (1, known["a_len"] + known["b_len"])


def test_sizes_that_a_branch_does_not_fit_once_they_are_fixed_are_passed_over(
    tmp_path: Path,
) -> None:
    """As silero-vad has a branch for another rate, which is not taken."""
    body = """g (float[1, samples] x) => (float[1, m] y) <int64 five = {5}> {
        i = Size(x) c = Greater(i, five)
        y = If (c) <
            then_branch = a () => (float[1, p] r) { r = Relu(x) },
            else_branch = b () => (float[1, q] s) <float[3, 1] w = {1, 2, 3}> { s = MatMul(x, w) }
        >
    }"""
    assert sized(tmp_path, body) == Sized(sizes={"samples": 3}, guessed=("samples",))


def test_of_a_model_that_runs_at_none_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_SIZE_RUNS", "3")
    body = (
        "g (float[a, 3] x) => (float[c] y) <int64[1] s = {0}> "
        "{ z = Reshape(x, s) q = ReduceSum<keepdims = 0>(z) i = Cast<to = 7>(q) "
        "w = Expand(q, s) y = Gather(w, i) }"
    )
    found = sized(tmp_path, body)
    assert not found.runs and found.sizes == {"a": 1} and "cannot be reshaped" in found.why
    assert found.ended == "3 runs; EPCTX_LIMIT_SIZE_RUNS sets another limit"
    words = ("init", "m.onnx", "--provider", "ReferenceExecutionProvider")
    done, ended = command_line.inside(*words, cwd=tmp_path), f'"m.onnx" ended after {found.ended}'
    written = (tmp_path / "epctx.yaml").read_text(encoding="utf-8")
    assert f"# The search for sizes of {ended}\n" in written and "# dimensions: {a: 1}\n" in written
    assert done.returncode == 0 and f"The search for sizes of {ended}\n" in done.stderr


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("g (float[n, 2] x) => (float[n, 2] x) { }", "has no node"),
        ("g (float[n, 2] x) => (float[n, 2] y) { y = acme.Nope(x) }", "ONNX Runtime has no kernel"),
    ],
)
def test_what_cannot_be_built_is_refused(tmp_path: Path, body: str, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        sized(tmp_path, body)


def test_a_model_that_does_not_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_SIZE_SECONDS", "1")
    body = """g (float[n] x) => (float[n] y) <int64 most = {9000000000000000000}, bool on = {1}> {
        y = Loop (most, on, x) <body = each (int64 i, bool before, float[n] old)
            => (bool after, float[n] new) { after = Identity(before) new = Identity(old) }>
    }"""
    found = sized(tmp_path, body)
    assert not found.runs and not found.why
    assert found.ended == "4 s; EPCTX_LIMIT_SIZE_SECONDS sets a quarter of that"
