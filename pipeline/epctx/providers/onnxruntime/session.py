"""Generating sessions, in which ONNX Runtime compiles a model and writes the result, and their log.

This module handles the traps of real-eps.md section 9: without `enable_fallback=0` the CPU EP
silently replaces an EP that cannot be made; reasons are only in the log; a "successful" session may
have compiled nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import CompileError, ManifestError, ProviderUnavailable
from epctx.files.outputs import context_file
from epctx.graph import native
from epctx.providers.onnxruntime.ep import OrtEp

if TYPE_CHECKING:
    import onnxruntime as ort


if sys.platform == "win32":
    import msvcrt

if sys.platform != "win32":
    import fcntl

_STDERR: Final = 2
_ERROR: Final = re.compile(r"\[E:onnxruntime:[^,]*, (?P<place>[^\]]*)\] (?P<words>.*)")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


class Mark(Struct, frozen=True, kw_only=True):
    """A place in the log."""

    path: Path | None
    position: int = 0

    @classmethod
    def here(cls) -> Mark:
        """Return a mark at the log's current end."""
        path = _path()
        return cls(path=path, position=path.stat().st_size if path else 0)

    def text(self) -> str:
        """Return the log since this mark, at most limits.LOG_BYTES, without colours."""
        if self.path is None:
            return ""
        with self.path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(self.position, size - limits.LOG_BYTES.value))
            return _COLOUR.sub("", stream.read().decode(errors="replace"))

    def errors(self) -> list[str]:
        """Return the errors that ONNX Runtime and its EPs logged since this mark, each once,
        without time.
        """
        messages = (match["words"].strip() for match in _ERROR.finditer(self.text()))
        return list(dict.fromkeys(words for words in messages if words))


def _path() -> Path | None:
    """Return the file that stderr is redirected to, if any."""
    try:
        if not stat.S_ISREG(os.fstat(_STDERR).st_mode):
            return None
        if sys.platform == "win32":
            return Path(_windows_path())
        if sys.platform == "darwin":
            return Path(_macos_path())
        return Path(f"/proc/self/fd/{_STDERR}").resolve(strict=True)
    except OSError:
        return None


if sys.platform == "win32":

    def _windows_path() -> str:

        buffer = ctypes.create_unicode_buffer(32768)
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(_STDERR))
        final_path = ctypes.windll.kernel32.GetFinalPathNameByHandleW
        if not final_path(handle, buffer, len(buffer), 0):
            raise OSError("stderr has no path")
        return buffer.value


if sys.platform == "darwin":

    def _macos_path() -> str:

        longest = 1024  # sys/syslimits.h: PATH_MAX, which F_GETPATH fills in at most
        path = fcntl.fcntl(_STDERR, fcntl.F_GETPATH, bytes(longest))
        return os.fsdecode(path.rstrip(b"\0"))


LEVEL: Final = "session.graph_optimization_level"
"""ONNX Runtime's level of graph optimization: the only key of `session_options` that is not a
config entry, since Python sets the level as an attribute."""
_LEVELS: Final = {
    "disable_all": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_RESTING: Final = {
    "session.intra_op.allow_spinning": "0",
    "session.inter_op.allow_spinning": "0",
}
"""Defaults that the manifest can override: ONNX Runtime's idle threads do not spin on cores that an
EP could use to compile."""
_SINCE: Final = {"session.kernel_dispatch_policy": (1, 32)}
"""Entries with the version of ONNX Runtime that introduced them. Earlier versions ignore them."""
_GENERATE: Final = "ep.context_enable"
_INTO: Final = "ep.context_file_path"
_NEEDS_COMPILATION: Final = "MODEL_REQUIRES_COMPILATION"
_CODE: Final = re.compile(r"\[ONNXRuntimeError\] : \d+ : (?P<code>\w+) : ")
_PLACE: Final = re.compile(r"/onnxruntime_src/\S+:\d+ [^(]*\([^)]*\)(?: const)? ")
"""Place in ONNX Runtime where an error was thrown: file, line, signature."""
_RELAY: Final = re.compile(r"Exception from \S+:\d+:$")
"""Place in OpenVINO that passed an exception on; the reason is in the lines after it."""


class Generated(Struct, frozen=True, kw_only=True, eq=False):
    """A live generating session and its output.

    Attributes:
        session: runs the compiled graphs; never closed before the group is done.
        model: the EPContext model that was written; None if nothing was compiled.
        log: mark of the log's start for this session.
    """

    session: ort.InferenceSession
    model: Path | None
    log: Mark


def generate(
    name: str,
    provider: OrtEp,
    *,
    embed_mode: int,
    entries: Mapping[str, str],
    external: str | None = None,
    into: Path | None = None,
) -> Generated:
    """Compile the model `name`, a path relative to the current folder, into `<stem>_ctx.onnx`.

    Args:
        entries: session config entries besides those of the generation.
        into: output folder, which is created; None for the current folder.
        external: file for the initializers of the EPContext model; None to keep them inside the
            model.

    Raises:
        CompileError: ONNX Runtime or the EP failed.
    """
    log = Mark.here()
    options = session_options(entries)
    options.add_session_config_entry(_GENERATE, "1")
    options.add_session_config_entry("ep.context_embed_mode", str(embed_mode))
    if external is not None:
        options.add_session_config_entry(
            "ep.context_model_external_initializers_file_name", external
        )
    path = Path(name).with_name(context_file(Path(name).stem))
    if into is not None:
        into.mkdir(parents=True)
        path = into / path
        options.add_session_config_entry(_INTO, str(path))
    provider.add_to(options)
    session = create(name, options, provider=provider.name, log=log)
    return Generated(
        session=session,
        model=path if path.is_file() else None,
        log=log,
    )


def generates(options: ort.SessionOptions) -> bool:
    """Tell whether a session with these options generates a context, or only asks what would be
    compiled.
    """
    try:
        return str(options.get_session_config_entry(_GENERATE)) == "1"
    except RuntimeError:  # the entry is not set
        return False


def needs_compilation(name: str, provider: OrtEp) -> bool:
    """Tell whether the EP takes any node of the model `name`; nothing is compiled.

    The question does not affect later compiles (real-eps.md section 1).

    Raises:
        CompileError: ONNX Runtime or the EP failed.
    """
    return _ask(name, provider, severity=2)[0]


def ask_verbosely(name: str, provider: OrtEp) -> str:
    """Ask the EP which nodes it takes, and return its most verbose log; nothing is compiled.

    Raises:
        CompileError: ONNX Runtime or the EP failed.
    """
    return _ask(name, provider, severity=0)[1].text()


def _ask(name: str, provider: OrtEp, *, severity: int) -> tuple[bool, Mark]:
    """Return whether the EP would compile anything, and the mark where the question's log
    begins.
    """
    log = Mark.here()
    # QNN 2.7.0 takes a list of chips only to generate a context. Nothing is written here.
    entries = {"session.disable_model_compile": "1", _GENERATE: "1", _INTO: "asked_ctx.onnx"}
    options = session_options(entries)
    options.log_severity_level = severity
    provider.add_to(options)
    try:
        create(name, options, provider=provider.name, log=log)
    except CompileError as error:
        if _NEEDS_COMPILATION not in (error.why or ""):
            raise
        return True, log
    return False, log


def create(
    name: str, options: ort.SessionOptions, *, provider: str, log: Mark
) -> ort.InferenceSession:
    """Make a session over the model `name` on the EP of `options`, without a fallback.

    Raises:
        CompileError: the session cannot be made. Quotes the log's errors.
    """
    import onnxruntime as ort

    try:
        return ort.InferenceSession(name, options, enable_fallback=0)
    except Exception as error:
        # ONNX Runtime's own classes derive from Exception; an EP that cannot be made is a
        # RuntimeError; a text by OpenVINO that is not UTF-8 is a UnicodeDecodeError.
        message = _message(error)
        logged = [line for line in log.errors() if line not in message and not _RELAY.search(line)]
        raise CompileError(
            f"{provider} cannot compile it",
            where=name,
            why="; ".join([message, *logged[:3]]),
            remedy="let `epctx bisect` find the nodes to keep off the EP (`partition: {exclude: "
            "{nodes: [...]}}`; its log may name some), or change the provider's options",
        ) from error


def session_options(entries: Mapping[str, str]) -> ort.SessionOptions:
    """Make session options with these config entries. Graph optimization is off unless an entry
    sets it.

    Raises:
        ManifestError: an unknown level of graph optimization.
        ProviderUnavailable: the installed ONNX Runtime would ignore an entry.
    """
    import onnxruntime as ort

    for name in entries.keys() & _SINCE.keys():
        if tuple(map(int, ort.__version__.split(".")[:2])) < _SINCE[name]:
            raise ProviderUnavailable(
                f"onnxruntime {ort.__version__} ignores session option {name}",
                remedy=f"install onnxruntime {'.'.join(map(str, _SINCE[name]))} or later, "
                "or remove the option",
            )
    options = native.session_options()
    options.log_severity_level = 2  # warnings and errors
    level = entries.get(LEVEL, "disable_all")
    if level not in _LEVELS:
        raise ManifestError(
            f"{LEVEL} is {level!r}",
            remedy=f"write one of {', '.join(_LEVELS)}",
            code=Code.WRONG_VALUE,
        )
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[level])
    for key, value in (_RESTING | dict(entries)).items():
        if key != LEVEL:
            options.add_session_config_entry(key, value)
    return options


def _message(error: Exception) -> str:
    """Return ONNX Runtime's or the EP's message, without its own source lines and class names."""
    text = _PLACE.sub("", _CODE.sub(r"\g<code>: ", str(error)))
    lines = [line.strip() for line in text.splitlines() if not _RELAY.search(line.strip())]
    words = " ".join(line for line in lines if line)[:600]
    return words or type(error).__name__
