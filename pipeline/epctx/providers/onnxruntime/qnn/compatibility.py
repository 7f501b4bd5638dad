"""The compatibility string that QNN writes into an EPContext model."""

from __future__ import annotations

from msgspec import Struct

from epctx.providers.hooks import Verdict
from epctx.providers.onnxruntime.qnn import socs
from epctx.providers.onnxruntime.qnn.options import QnnOptions


class Compatibility(Struct, frozen=True, kw_only=True):
    """QNN's compatibility string: `v2:6:2.51.0:5.51.0:0:60:0:0`.

    Attributes:
        qairt: version of the SDK.
        arch: HTP architecture as the option asked for it; 0: by the chip.
        soc: the chip's number.
        vtcm: VTCM as the option asked for it, in MiB; 0: QNN decided.
    """

    qairt: str
    arch: int
    soc: int
    vtcm: int

    @classmethod
    def parse(cls, info: str) -> Compatibility | None:
        """None: another form than that of onnxruntime-qnn 2.7."""
        fields = info.split(":")
        if len(fields) != 8 or fields[0] != "v2" or not all(map(str.isdecimal, fields[4:7])):
            return None
        arch, soc, vtcm = (int(field) for field in fields[4:7])
        return cls(qairt=fields[2], arch=arch, soc=soc, vtcm=vtcm)


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
    words = f"it is for soc_model {socs.words(found.soc)}, made by QAIRT {found.qairt}"
    asked = {
        "soc_model": (found.soc, options.soc),
        "htp_arch": (found.arch, options.arch),
        "vtcm_mb": (found.vtcm, options.vtcm),
    }
    wrong = [
        f"{option} is {have}, not {want}"
        for option, (have, want) in asked.items()
        if want is not None and have != want
    ]
    if not wrong:
        return Verdict(outcome="pass", message=words)
    return Verdict(
        outcome="fail",
        message=f"{words}: {', '.join(wrong)}",
        remedy="build it again with the options that it is to have",
    )
