"""The compatibility string that QNN writes into an EPContext model."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from epctx.providers.base import Verdict
from epctx.providers.onnxruntime.qnn import socs
from epctx.providers.onnxruntime.qnn.options import QnnOptions


class Compatibility(Struct, frozen=True, kw_only=True):
    """QNN's compatibility string: `v2:6:2.51.0:5.51.0:0:60:0:0`, for several chips
    `v2:6:2.51.0:5.51.0:0,0:60,57:0,0:0`.

    Attributes:
        qairt: version of the SDK.
        archs: for each chip the HTP architecture as the option asked for it; 0: by the chip.
        chips: their numbers.
        vtcms: for each chip VTCM as the option asked for it, in MiB; 0: QNN decided.
    """

    qairt: str
    archs: tuple[int, ...]
    chips: tuple[int, ...]
    vtcms: tuple[int, ...]

    @classmethod
    def parse(cls, info: str) -> Compatibility | None:
        """None: another form than that of onnxruntime-qnn 2.7."""
        fields = info.split(":")
        lists = [field.split(",") for field in fields[4:7]]
        numbers = all(each.isdecimal() for listed in lists for each in listed)
        if len(fields) != 8 or fields[0] != "v2" or not numbers:
            return None
        archs, chips, vtcms = (tuple(map(int, listed)) for listed in lists)
        return cls(qairt=fields[2], archs=archs, chips=chips, vtcms=vtcms)


def verdict(info: str | None, options: QnnOptions, *, key: str) -> Verdict:
    """Whether a model is for the chip, architecture and VTCM that the options ask for.

    Args:
        info: the model's string; None: it has none.
        key: where the model has it.
    """
    if info is None:
        return Verdict(
            outcome="fail",
            message=f"it has no {key}",
            remedy="build it again; onnxruntime-qnn 2 and later write it",
        )
    found = Compatibility.parse(info)
    if found is None:
        return Verdict(outcome="not checkable", message=f"{info!r} is of an unknown form")
    words = f"it is for soc_model {socs.listed(found.chips)}, made by QAIRT {found.qairt}"
    asked = {
        "soc_model": (sorted(found.chips), sorted(options.chips)),
        "htp_arch": (sorted({*found.archs}), [] if options.arch is None else [options.arch]),
        "vtcm_mb": (sorted({*found.vtcms}), [] if options.vtcm is None else [options.vtcm]),
    }
    wrong = [
        f"{option} is {_words(have)}, not {_words(want)}"
        for option, (have, want) in asked.items()
        if want and have != want
    ]
    if not wrong:
        return Verdict(outcome="pass", message=words)
    return Verdict(
        outcome="fail",
        message=f"{words}: {', '.join(wrong)}",
        remedy="build it again with the options that it is to have",
    )


def _words(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))
