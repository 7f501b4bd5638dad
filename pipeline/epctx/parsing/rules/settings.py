"""Rules about paths, and about settings that every group may have."""

from __future__ import annotations

import contextlib
import glob
import re
import stat
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PureWindowsPath

from msgspec import Struct

from epctx.error_codes import Code
from epctx.graph.passes import registry
from epctx.parsing.document.tree import Node, Problem, at, at_key, of_kind, quoted
from epctx.text import did_you_mean

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_GLOB = re.compile(r"[*?\[]")


class Places(Struct, frozen=True, kw_only=True, dict=True):
    """Folder of relative paths, with the rules for paths.

    Attributes:
        folder: absolute folder of the manifest.
        allow_outside: paths may lead out of the folder.
        partial: files may be missing, as in a checkout without them.
    """

    folder: Path
    allow_outside: bool = False
    partial: bool = False

    @cached_property
    def _resolved(self) -> Path:
        return self.folder.resolve()

    @cached_property
    def _inside(self) -> dict[Path, bool]:
        """Cache: for each folder, True if it resolves to a path in the manifest's folder."""
        return {}

    def _leads_inside(self, path: Path) -> bool:
        """Tell whether a path stays in the manifest's folder; each folder is resolved once.

        Raises:
            OSError, RuntimeError, ValueError: the path cannot be resolved.
        """
        with contextlib.suppress(OSError):
            if path.name != ".." and not stat.S_ISLNK(path.lstat().st_mode):
                folder = path.parent
                if folder not in self._inside:
                    self._inside[folder] = folder.resolve().is_relative_to(self._resolved)
                if self._inside[folder]:
                    return True
        return path.resolve().is_relative_to(self._resolved)

    def lacks(self, path: Path) -> bool:
        """Tell whether a file is missing and may be."""
        return self.partial and not path.exists()

    def absolute(self, text: str) -> Path:
        """Path that `text` refers to, without following links."""
        return self.folder / text

    def files(self, pattern: str) -> tuple[Path, ...]:
        """Files that match a pattern, sorted; the path itself if `pattern` has no wildcard."""
        if not _GLOB.search(pattern):
            return (self.absolute(pattern),)
        matches = glob.glob(pattern, root_dir=self.folder, recursive=True)  # noqa: PTH207 - takes absolute ones
        paths = sorted((self.absolute(text) for text in matches), key=Path.as_posix)
        return tuple(path for path in paths if path.is_file())

    def problem(self, text: str) -> tuple[str, str] | None:
        """Reason why a path cannot be used, with a remedy; None if it can."""
        written = _spelling(text)
        if written is not None:
            return written
        if self.allow_outside:
            return None
        inside = "keep it inside the manifest's folder"
        if text.startswith("/") or (":" in text and PureWindowsPath(text).drive):
            return "is an absolute path", inside
        return self.outside(self.absolute(text), inside)

    def outside(self, path: Path, remedy: str) -> tuple[str, str] | None:
        """Fault if `path` leads out of the folder after links are followed; None if it does not."""
        try:
            inside = self._leads_inside(path)
        except UnicodeEncodeError:
            encoding = sys.getfilesystemencoding()
            what = f"cannot be encoded: file names are {encoding} here"
            return what, "set the environment variable PYTHONUTF8=1, or another locale"
        except (OSError, RuntimeError, ValueError):
            return "cannot be followed: it loops or is too long", "check its links"
        if not inside:
            return "leads out of the manifest's folder", remedy
        return None


def _spelling(text: str) -> tuple[str, str] | None:
    if _URL.match(text):
        return "is a URL", "download the file and name its path"
    if "\\" in text:
        return "has a backslash", f"write it with /: {text.replace(chr(92), '/')}"
    if text.startswith("~"):
        return "starts with ~, which is not expanded", "write the path out"
    return None


FILES = (".npz", ".pb")
"""File types of `verify.inputs.files` and `quantize.calibration.files`."""
_CALIBRATED = (
    *("activations", "weights", "per_channel", "symmetric"),
    *("method", "range_floor", "overrides"),
)
"""Keys of `quantize` that have no effect without calibration."""


def check(group: Node, places: Places) -> Iterator[Problem]:
    """Find problems in the settings of a resolved group."""
    yield from of_kind(Code.NO_SUCH_PASS, _passes(group.get("optimize", "level")))
    inputs = group.get("verify", "inputs")
    if inputs is not None:
        yield from of_kind(Code.VERIFY_INPUTS, _ranges(inputs.get("ranges")))
        yield from of_kind(Code.VERIFY_INPUTS, _files(inputs.get("files"), places))
    quantize = group.get("quantize")
    if quantize is not None and quantize.kind == "mapping":
        yield from of_kind(Code.CALIBRATION, _quantize(quantize, places))


def _passes(level: Node | None) -> Iterator[Problem]:
    """Find unknown names in a list of passes."""
    if level is None or not level.items:
        return

    pass_names = (*registry.names(), *registry.LEVELS)
    for item in level.items:
        if item.string and item.string not in pass_names:
            what = f"there is no pass {quoted(item.string)}"
            yield at(item, what, did_you_mean(item.string, pass_names))


def _ranges(ranges: Node | None) -> Iterator[Problem]:
    for node in ranges.mapping.values() if ranges is not None else ():
        bounds = [item.value for item in node.items if isinstance(item.value, int | float)]
        if len(bounds) == 2 and bounds[0] > bounds[1]:
            low, high = (item.text for item in node.items)
            yield at(node, f"starts at {low} and ends below, at {high}", f"write [{high}, {low}]")


def _quantize(quantize: Node, places: Places) -> Iterator[Problem]:
    """Find contradictions in `quantize`, and faults of its files."""
    calibration = quantize.get("calibration")
    weight_only = quantize.get("weight_only")
    files, random = quantize.get("calibration", "files"), quantize.get("calibration", "random")
    generated = random is not None and random.value is True
    alone = weight_only is not None and weight_only.kind == "mapping" and calibration is None
    if alone:
        for key in _CALIBRATED:
            if key in quantize.mapping and quantize.mapping[key].kind != "null":
                what = "has no effect: without samples only weights are quantized, in blocks"
                yield at_key(quantize, key, what, f"remove {key}, or give `calibration`")
    elif random is not None and generated and files is not None and files.items:
        what = "is true, but there are files"
        yield at(random, what, "remove `random`, or `files`")
    elif not generated and (files is None or not files.items):
        what = "there are no samples to calibrate with"
        remedy = (
            "name files of real inputs: `calibration: {files: [calib/*.npz]}`; to try it out "
            "without, set `calibration: {random: true}`"
        )
        yield at(calibration or quantize, what, remedy)
    yield from _files(files, places)
    weights = quantize.get("weights")
    if weights is not None and weights.value == "uint8" and _are_int8(quantize.get("activations")):
        what = "is uint8, but activations are int8: onnxruntime does not support this pair"
        yield at(weights, what, "write int8, or leave one of them out")
    overrides = quantize.get("overrides")
    for override in overrides.mapping.values() if overrides is not None else ():
        yield from _ranges(override)


def _are_int8(activations: Node | None) -> bool:
    return activations is not None and activations.value == "int8"


def _files(files: Node | None, places: Places) -> Iterator[Problem]:
    for node in files.items if files is not None else ():
        if node.string:
            yield from _file(node, node.string, places)


def _file(node: Node, pattern: str, places: Places) -> Iterator[Problem]:
    wrong = places.problem(pattern)
    if wrong is not None:
        yield at(node, *wrong)
        return
    paths = places.files(pattern)
    if not paths and not places.partial:
        yield at(node, "matches no file", "check the pattern; it is relative to the manifest")
    for path in paths:
        if path.suffix.lower() not in FILES:
            what = f"{quoted(path.name)} is not a .npz or .pb file"
            yield at(
                node, what, "save the inputs with numpy.savez, or as ONNX TensorProto .pb files"
            )
            return
        outside = None if places.allow_outside else places.outside(path, "copy the file inside")
        if outside is not None:
            yield at(node, *outside)
            return
