"""The chips that QNN compiles for.

Names and numbers: Qnn_SocModel_t of QNN's QnnTypes.h and the table of onnxruntime-qnn 2.7's
soc_utils.cc; architectures: Qualcomm's table of the chips with an HTP, as executorch 1.x has it.
The compiles for each number were measured with QAIRT 2.51.0 on x86-64, one MatMul each, float32 and
quantized. The EP itself reads an unknown name (SA8295, QCM6490) as chip 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.text import did_you_mean

MEASURED: Final = "2.51"
"""QAIRT release for which `KNOWN` and `FLOAT` are true."""


class Soc(Struct, frozen=True, kw_only=True):
    """A chip: its number in QNN, its name, its HTP architecture (75 for v75)."""

    number: int
    name: str
    arch: int


NAMED: Final = {
    soc.name: soc
    for soc in (
        Soc(number=30, name="sm8350", arch=68),
        Soc(number=34, name="sm8325", arch=68),
        Soc(number=36, name="sm8450", arch=69),
        Soc(number=39, name="sa8295", arch=68),
        Soc(number=42, name="sm8475", arch=69),
        Soc(number=43, name="sm8550", arch=73),
        Soc(number=45, name="sxr1230p", arch=73),
        Soc(number=46, name="ssg2115p", arch=73),
        Soc(number=52, name="sa8255", arch=73),
        Soc(number=53, name="sxr2230p", arch=69),
        Soc(number=57, name="sm8650", arch=75),
        Soc(number=58, name="ssg2125p", arch=73),
        Soc(number=60, name="sc8380xp", arch=73),
        Soc(number=62, name="sa8540", arch=68),
        Soc(number=68, name="sm8635", arch=73),
        Soc(number=69, name="sm8750", arch=79),
        Soc(number=70, name="sm7675", arch=73),
        Soc(number=72, name="sa8797", arch=81),
        Soc(number=75, name="sxr2330p", arch=79),
        Soc(number=77, name="qcs9100", arch=73),
        Soc(number=87, name="sm8850", arch=81),
        Soc(number=88, name="sc8480xp", arch=81),
        Soc(number=93, name="qcm6490", arch=68),
        Soc(number=95, name="sar2230p", arch=81),
        Soc(number=96, name="sw6100", arch=81),
        Soc(number=97, name="sm8845", arch=81),
        Soc(number=103, name="sm8975", arch=85),
    )
}
_NEAR: Final = 3
"""Number of chips that a message suggests for an unknown number."""
_BY_NUMBER: Final = {soc.number: soc for soc in NAMED.values()}

KNOWN: Final = frozenset(range(124)) - {14, 22, 23, 24, 44, 79, 80, 81, 98, 121, 122}
"""Numbers that QAIRT 2.51 compiles for, including 0 ("unknown"). For any other number it compiles
nothing, and the error is only in the log."""
FLOAT: Final = frozenset(
    {
        0, 30, 36, 39, 41, 42, 43, 52, 53, 57, 60, 62, 63, 66, 67, 69, 72, 75, 77, 82, 87, 88, 89,
        90, 92, 94, 97, 99, 103, 104, 105, 109, 112,
    }
)  # fmt: skip
"""Numbers of chips for which QAIRT 2.51 compiles float models; for others it compiles only
quantized ones."""


def number(text: str, *, qairt: str) -> int:
    """Return QNN's number of a chip given by number or name.

    Args:
        qairt: the installed QAIRT's version.

    Raises:
        ManifestError: the chip does not exist.
    """
    if text.isdecimal():
        chip = int(text)
        if qairt.startswith(f"{MEASURED}.") and chip not in KNOWN:
            near = sorted(NAMED.values(), key=lambda soc: abs(soc.number - chip))[:_NEAR]
            listed = ", ".join(f"{soc.number} ({soc.name})" for soc in near)
            raise ManifestError(
                f"soc_model is {text}, a chip that QAIRT {qairt} does not know",
                remedy=f"write another number or a name; the nearest are {listed}",
                code=Code.UNKNOWN_SOC,
            )
        return chip
    soc = NAMED.get(text.lower())
    if soc is None:
        raise ManifestError(
            f"soc_model is {text!r}, which is not the name of a chip that epctx knows",
            remedy=f"{did_you_mean(text, NAMED)} (or write its number in QNN)",
            code=Code.UNKNOWN_SOC,
        )
    return soc.number


def numbers(names: Sequence[str], *, qairt: str) -> tuple[int, ...]:
    """Return QNN's numbers of several chips, each given by number or name.

    Raises:
        ManifestError: a chip does not exist, or is named twice.
    """
    names_of: dict[int, str] = {}
    for name in names:
        chip = number(name, qairt=qairt)
        if chip in names_of:
            raise ManifestError(
                f"soc_model names one chip twice: {names_of[chip]} and {name} are {words(chip)}",
                remedy="keep one of them; QNN would write its cache twice",
                code=Code.UNKNOWN_SOC,
            )
        if chip == 0 and len(names) > 1:
            raise ManifestError(
                "soc_model lists 0, which stands for any chip",
                why="a device looks in the file for its own chip",
                remedy="leave 0 out of the list",
                code=Code.UNKNOWN_SOC,
            )
        names_of[chip] = name
    return tuple(names_of)


def listed(chips: Iterable[int]) -> str:
    """List several chips in words."""
    return ", ".join(map(words, chips))


def words(chip: int) -> str:
    """Describe a chip by its number and known facts: `60 (sc8380xp, v73)`."""
    if chip == 0:
        return "0 (any chip)"
    soc = _BY_NUMBER.get(chip)
    return f"{chip} ({soc.name}, v{soc.arch})" if soc else str(chip)
