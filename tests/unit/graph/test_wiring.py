"""Wiring of a composition."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from epctx.error_codes import Code
from epctx.errors import EpctxError, ManifestError, ModelError
from epctx.graph.inputs import Dim, InputSpec
from epctx.graph.wiring import Interface, Port, Wiring, resolve


def spec(name: str, *shape: Dim, dtype: type = np.float32) -> InputSpec:
    kind = np.dtype(dtype)
    return InputSpec(name=name, dtype=kind, shape=shape or (1, 4), kind=str(kind))


def part(
    name: str,
    inputs: str,
    outputs: str,
    prefix: str = "",
    links: Mapping[str, Port] | None = None,
    outer: Mapping[str, str] | None = None,
) -> Interface:
    return Interface(
        name=name,
        inputs=tuple(map(spec, inputs.split())),
        outputs=tuple(map(spec, outputs.split())),
        prefix=prefix,
        links=links or {},
        outer=outer or {},
    )


def port(text: str) -> Port:
    name, _, own = text.partition(".")
    return Port(part=name, name=own)


def wire(*parts: Interface, outputs: Mapping[str, Port] | None = None) -> Wiring:
    return resolve(parts, outputs, where="compose.whole")


def refused(*parts: Interface, outputs: Mapping[str, Port] | None = None) -> EpctxError:
    with pytest.raises((ManifestError, ModelError)) as caught:
        wire(*parts, outputs=outputs)
    expected = Code.SIZE_MISFIT if isinstance(caught.value, ModelError) else Code.COMPOSITION
    assert caught.value.code == expected
    return caught.value


def test_what_the_manifest_says_comes_before_names() -> None:
    second = part("b", "x", "y", "b_", links={"x": port("a.y")})
    found = wire(part("a", "x", "y"), second)
    assert found.links == {port("b.x"): port("a.y")}
    assert found.outputs == {"b_y": port("b.y")}


def test_an_output_may_feed_several_and_an_input_too() -> None:
    mask = {"mask": "mask"}
    found = wire(
        part("a", "x mask", "h", outer=mask),
        part("b", "h mask", "y", outer=mask),
        part("c", "h", "z"),
    )
    assert found.links == {port("b.h"): port("a.h"), port("c.h"): port("a.h")}
    assert found.inputs["mask"] == (port("a.mask"), port("b.mask"))
    assert list(found.outputs) == ["y", "z"]


def test_outputs_that_are_asked_for_may_be_taken_by_parts_too() -> None:
    asked = {"hidden": port("a.h"), "y": port("b.y")}
    assert wire(part("a", "x", "h"), part("b", "h", "y"), outputs=asked).outputs == asked


def test_inputs_of_one_name_are_an_error_that_says_which_prefix_helps() -> None:
    error = refused(part("a", "x mask", "h"), part("b", "h mask", "y"))
    assert error.exit_code == 3
    assert error.what == 'the parts a and b both bring an input "mask"'
    assert "`prefix: b_`" in error.remedy and "{input: mask}" in error.remedy
    assert list(wire(part("a", "x mask", "h"), part("b", "h mask", "y", "b_")).inputs) == [
        "x",
        "mask",
        "b_mask",
    ]


def test_outputs_of_one_name_are_an_error_that_says_which_prefix_helps() -> None:
    error = refused(part("a", "x", "y b_y"), part("b", "z", "y"))
    assert 'would have "y" twice, from a and from b' in error.what
    assert "`prefix: b__`" in error.remedy  # b_y is taken, too


def test_a_name_that_two_parts_make_is_ambiguous() -> None:
    error = refused(part("a", "x", "h"), part("b", "z", "h"), part("c", "h", "y"))
    assert error.what == 'the parts a and b make "h", and c takes only one'
    assert error.remedy == "say which: h: {part: b, output: h}"


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (spec("h", 1, 5), "their shapes differ"),
        (spec("h", 4), "they are of different rank"),
        (spec("h", 1, 4, dtype=np.int64), "they are of different types"),
    ],
)
def test_ends_that_do_not_fit_are_both_named(second: InputSpec, what: str) -> None:
    taker = Interface(name="b", inputs=(second,), outputs=(spec("y"),))
    error = refused(part("a", "x", "h"), taker)
    assert error.exit_code == 4
    assert error.what == f"a.h and b.h do not fit: {what}"
    assert error.why == f"a.h is float32[1, 4], b.h is {second}"


@pytest.mark.parametrize("shape", [(1, None), ("batch", 4), (None,)])
def test_what_is_not_known_may_fit(shape: tuple[Dim, ...]) -> None:
    taker = Interface(name="b", inputs=(spec("h", *shape),), outputs=(spec("y"),))
    assert wire(part("a", "x", "h"), taker).links


def test_an_input_that_parts_share_must_fit_all() -> None:
    mask = {"m": "m"}
    wide = Interface(name="b", inputs=(spec("m", 2, 2),), outputs=(spec("z"),), outer=mask)
    assert refused(part("a", "m", "y", outer=mask), wide).exit_code == 4


@pytest.mark.parametrize(
    ("parts", "outputs", "what"),
    [
        (
            [part("a", "x", "h"), part("b", "h", "y", links={"g": port("a.h")})],
            None,
            'the part b has no input "g"',
        ),
        (
            [part("a", "x", "h"), part("b", "h", "y", links={"h": port("a.hh")})],
            None,
            'the part a has no output "hh"',
        ),
        (
            [part("a", "x", "h"), part("b", "h", "y")],
            {"y": port("b.z")},
            'the part b has no output "z"',
        ),
        (
            [part("a", "x", "h"), part("b", "h", "y")],
            {"x": port("b.y")},
            'the output "x" has the name of an input of the composition',
        ),
    ],
)
def test_names_that_do_not_exist(
    parts: list[Interface], outputs: Mapping[str, Port] | None, what: str
) -> None:
    assert refused(*parts, outputs=outputs).what == what
