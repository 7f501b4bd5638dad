"""QNN's options: made explicit, and refused where QNN would misread them.

QNN's handling of each option was measured on onnxruntime-qnn 2.7.0 (real-eps.md section 9).
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.manifest import OptionValue
from epctx.providers.onnxruntime import packages
from epctx.providers.onnxruntime.ep import text
from epctx.providers.onnxruntime.qnn import socs

INSTALL: Final = 'pip install "epctx[qnn]"'


class QnnOptions(Struct, frozen=True, kw_only=True):
    """Options as epctx understands them.

    Attributes:
        chips: QNN's numbers of the chips; empty if not given; several for one file for all of them.
        arch: the HTP architecture; None if not given.
        vtcm: VTCM in MiB; None if not given.
        backend: the HTP backend library; None for the package's.
        one_binary: parts of one model go into one context binary.
        given: options for QNN, without the backend.
    """

    chips: tuple[int, ...]
    arch: int | None
    vtcm: int | None
    backend: Path | None
    one_binary: bool
    given: Mapping[str, str]

    @classmethod
    def parse(cls, options: Mapping[str, OptionValue]) -> QnnOptions:
        """Parse options that match the schema.

        Raises:
            ManifestError: QNN would misread an option, or compile nothing with it.
        """
        chips = _chips(options.get("soc_model"))
        given = {key: text(v) for key, v in options.items() if not isinstance(v, tuple)}
        if chips:
            given["soc_model"] = ",".join(map(str, chips))
        _refuse_combinations(given, chips)
        one_binary = given.pop("partition_binaries", "one") == "one"
        backend = given.pop("backend_path", None)
        given.pop("backend_type", None)  # `htp` is the backend's path
        if backend is not None:
            _refuse_backend(Path(backend))
        folder = given.pop("op_packages_dir", None)
        if "op_packages" in given:
            given["op_packages"] = _packages(given["op_packages"], folder)
        return cls(
            chips=chips,
            arch=_integer(given.get("htp_arch")),
            vtcm=_integer(given.get("vtcm_mb")),
            backend=None if backend is None else Path(backend),
            one_binary=one_binary,
            given=given,
        )

    def has(self, flag: str) -> bool:
        """Tell whether a flag is set."""
        return self.given.get(flag) == "1"


def _chips(given: OptionValue | None) -> tuple[int, ...]:
    names = given if isinstance(given, tuple) else () if given is None else (text(given),)
    return socs.numbers(names, qairt=qairt())


def _refuse_combinations(options: Mapping[str, str], chips: Sequence[int]) -> None:
    """Refuse options that are allowed alone but not together."""
    if chips and "htp_arch" in options:
        raise ManifestError(
            "soc_model and htp_arch are both given",
            why="QNN compiles for the soc_model, and still writes the htp_arch into the "
            "compatibility string",
            remedy="leave htp_arch out",
            code=Code.OPTIONS_DISAGREE,
        )
    if len(chips) > 1 and options.get("partition_binaries") == "one":
        raise ManifestError(
            "partition_binaries is one, but soc_model is a list",
            why="QNN cannot share a context for several chips, not even among parts of one model",
            remedy="leave partition_binaries out: each part gets a file of its own",
            code=Code.OPTIONS_DISAGREE,
        )
    if options.get("htp_bf16_enable") == "1" and min(chips, default=0) < 88:
        raise ManifestError(
            "htp_bf16_enable needs a soc_model of at least 88",
            remedy="set soc_model: sc8480xp, or leave htp_bf16_enable out",
            code=Code.OPTIONS_DISAGREE,
        )
    if options.get("enable_htp_fp16_precision") == "1" and not any(chips):
        raise ManifestError(
            "enable_htp_fp16_precision needs a soc_model",
            remedy="set soc_model, or leave enable_htp_fp16_precision out",
            code=Code.OPTIONS_DISAGREE,
        )


def _refuse_backend(path: Path) -> None:
    """Refuse a missing library or one that is not an HTP backend: QNN would silently compile
    nothing.
    """
    if not path.is_file():
        raise ManifestError(
            f"backend_path is {path}: there is no such file",
            remedy="write the path of libQnnHtp.so (QnnHtp.dll), or leave it out to use the "
            "library of onnxruntime-qnn",
            code=Code.WRONG_OPTION_VALUE,
        )
    if not re.fullmatch(r"(lib)?QnnHtp\.(so|dll)", path.name):
        raise ManifestError(
            f"backend_path is {path}, which is not an HTP backend",
            why="QNN makes contexts with its HTP backend only; with the CPU, IR and saver "
            "backends it compiles nothing, without an error",
            remedy="write the path of libQnnHtp.so (QnnHtp.dll)",
            code=Code.WRONG_OPTION_VALUE,
        )


def _packages(listed: str, folder: str | None) -> str:
    """Return op packages in QNN's form, with paths. QNN would compile nothing if a file is missing,
    and skip an entry whose path it splits, without an error.
    """
    place = Path(folder or "")
    if re.search("[,:]", str(place)[len(place.drive) :]):
        raise ManifestError(
            f"op_packages_dir is {place.as_posix()}, which contains ',' or ':'",
            why="QNN splits op_packages at both, and skips the parts without an error",
            remedy="move the op packages to a folder without them in its path",
            code=Code.WRONG_OPTION_VALUE,
        )
    entries = []
    for op, name, *rest in (entry.split(":") for entry in listed.split(",")):
        path = place / name
        if folder is None or not path.is_file():
            raise ManifestError(
                f"op_packages names {path.as_posix()}: there is no such file",
                remedy="write the names of files in op_packages_dir, a folder",
                code=Code.WRONG_OPTION_VALUE,
            )
        entries.append(":".join((op, str(path), *rest)))
    return ",".join(entries)


def _integer(value: str | None) -> int | None:
    return None if value is None else int(value)


@functools.cache
def qairt() -> str:
    """Return the QAIRT version of the installed package."""
    try:
        module = importlib.import_module("onnxruntime_qnn.build_and_package_info")
    except ImportError:
        return ""
    return str(getattr(module, "qnn_version", ""))


def package_path(function: str) -> Path:
    """Return the path that a function of the package returns."""
    remedy = f"run `{INSTALL} --upgrade`"
    return packages.path_from("onnxruntime_qnn", function, remedy=remedy)
