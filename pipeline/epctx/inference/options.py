"""Session options of the runtime: checks the entries of the spec's table, passes on the others.

Source: the EPContext design, "OnnxRuntime Session Options Related to EP Context Cache
Generation And Inference" and "EPContext with Weight Sharing".
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec import Struct

from epctx.errors import UsageError
from epctx.graph import native
from epctx.text import did_you_mean

if TYPE_CHECKING:
    import onnxruntime as ort

SessionOptions = Mapping[str, str]
"""Session config entries, string to string, where an `onnxruntime.SessionOptions` is not needed."""
NativeOptions: TypeAlias = "ort.SessionOptions | SessionOptions | None"
"""Session options that a caller may give."""

ENABLE: Final = "ep.context_enable"
FILE_PATH: Final = "ep.context_file_path"
EMBED_MODE: Final = "ep.context_embed_mode"
PREFIX: Final = "ep.context_node_name_prefix"
INITIALIZERS_FILE: Final = "ep.context_model_external_initializers_file_name"
SHARE: Final = "ep.share_ep_contexts"
STOP_SHARE: Final = "ep.stop_share_ep_contexts"
DATA_FOLDER: Final = "session.model_external_initializers_file_folder_path"
ASSIGNMENT: Final = "session.record_ep_graph_assignment_info"
"""Entry that makes onnxruntime record which EP took which node. Not in the spec's table."""

OF_SPEC: Final = (
    ENABLE,
    FILE_PATH,
    EMBED_MODE,
    PREFIX,
    INITIALIZERS_FILE,
    SHARE,
    STOP_SHARE,
    DATA_FOLDER,
)
_PREPARE_ONLY: Final = "ep.context_prepare_only"
_WEIGHTLESS: Final = (
    "ep.context_source_model_path",
    "ep.enable_weightless",
    "ep.enable_weightless_ep_context_nodes",
    "ep.enable_weightless_mode",
)
"""Entries for models without weights, which QNN 2.7.0 refuses or ignores (onnxruntime 1.32.0)."""
_OF_AN_EP: Final = re.compile(r"ep\.([a-z0-9_]+executionprovider|cpu|cuda|dynamic)\..+")
_PROPERTIES: Final = (
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "execution_mode",
    "execution_order",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "logid",
    "use_deterministic_compute",
)
_COMMON: Final = (
    ASSIGNMENT,
    "session.disable_prepacking",
    "session.enable_quant_qdq_cleanup",
    "session.force_spinning_stop",
    "session.inter_op.allow_spinning",
    "session.intra_op.allow_spinning",
    "session.intra_op_thread_affinities",
    "session.kernel_dispatch_policy",
    "session.set_denormal_as_zero",
    "session.use_device_allocator_for_initializers",
    "session.use_env_allocators",
)
"""Other entries of onnxruntime that affect the sessions of an EPContext model."""
_BORROWED: Final = threading.Lock()


class SessionConfig(Struct, frozen=True, kw_only=True):
    """Values of the spec's table; the spec's default for an absent entry.

    Attributes:
        enable: dump the EPContext model.
        file_path: path of the dumped model, or the assumed path of a model from bytes.
        embed_mode: 1 embeds the context.
        node_name_prefix: prefix of the names of nodes, partitions and graphs.
        initializers_file: bare name of the dumped model's external initializers; None if inside.
        share: the session shares its EP context with others of the process.
        stop_share: the session is the last one that shares.
        data_folder: folder of the model's external data; None if beside the model.
    """

    enable: bool = False
    file_path: Path | None = None
    embed_mode: Literal[0, 1] = 0
    node_name_prefix: str = ""
    initializers_file: str | None = None
    share: bool = False
    stop_share: bool = False
    data_folder: Path | None = None

    @classmethod
    def read(cls, options: NativeOptions) -> SessionConfig:
        """Read the entries from onnxruntime's object or from a mapping.

        The names of a mapping are checked too; onnxruntime's object cannot list its entries.

        Raises:
            UsageError: the value of an entry is invalid, or an `ep.*` name is unknown or refused.
        """
        entries = _entries(options)
        return cls(
            enable=_flag(entries, ENABLE),
            file_path=_path(entries, FILE_PATH),
            embed_mode=1 if _flag(entries, EMBED_MODE) else 0,
            node_name_prefix=entries.get(PREFIX, ""),
            initializers_file=entries.get(INITIALIZERS_FILE) or None,
            share=_flag(entries, SHARE),
            stop_share=_flag(entries, STOP_SHARE),
            data_folder=_path(entries, DATA_FOLDER),
        )


Lender: TypeAlias = "Callable[[bool], ort.SessionOptions]"
"""Returns the options to create one onnxruntime session. The argument says whether EPs will be
added to the options, which happens only if they have no EPs yet."""


@contextmanager
def lent(
    options: NativeOptions,
    entries: Mapping[str, str],
    *,
    any_native: bool = False,
) -> Iterator[Lender]:
    """Lend the caller's options, with `entries` added, while the sessions of one model are created.

    onnxruntime's object cannot be copied completely (custom op libraries and dimension overrides
    cannot be read). So sessions use the caller's object, and its entries are restored afterwards.
    If EPs will be added (`any_native`), sessions use a copy of all readable options instead, since
    added EPs could not be removed from the caller's object.
    """
    import onnxruntime as ort

    if not isinstance(options, ort.SessionOptions):
        given = {**(options or {}), **entries}
        yield lambda _: as_object(given)
        return

    def lend(native: bool) -> ort.SessionOptions:
        own = not any_native or (native and options.has_providers())
        return options if own else _copy(options)

    with _BORROWED:
        before = {key: _entry(options, key) or "" for key in entries}
        _with(options, entries)
        try:
            yield lend
        finally:
            _with(options, before)


def as_object(options: NativeOptions) -> ort.SessionOptions:
    """Return onnxruntime's object: the caller's own, or a new one with the entries of a mapping."""
    import onnxruntime as ort

    given = isinstance(options, ort.SessionOptions)
    return options if given else _with(native.session_options(), options or {})


def _with(options: ort.SessionOptions, entries: Mapping[str, str]) -> ort.SessionOptions:
    for key, value in entries.items():
        if (_entry(options, key) or "") != value:
            options.add_session_config_entry(key, value)
    return options


def recorded(options: ort.SessionOptions) -> bool:
    """Tell whether a session with these options records which EP took which node."""
    return _entry(options, ASSIGNMENT) == "1"


def _copy(options: ort.SessionOptions) -> ort.SessionOptions:
    import onnxruntime as ort

    copy = ort.SessionOptions()
    for name in _PROPERTIES:
        setattr(copy, name, getattr(options, name))
    entries = {name: _entry(options, name) for name in (*OF_SPEC, *_COMMON)}
    return _with(copy, {name: value for name, value in entries.items() if value is not None})


def _entries(options: NativeOptions) -> dict[str, str]:
    if options is None:
        return {}
    if isinstance(options, Mapping):
        for name, value in options.items():
            if not isinstance(value, str):
                raise UsageError(
                    f"session option {name!r} is {value!r}, not a string",
                    remedy='session config entries are strings, as in "1"',
                )
        entries = dict(options)
    else:
        read = {name: _entry(options, name) for name in (*OF_SPEC, *_WEIGHTLESS)}
        entries = {name: value for name, value in read.items() if value is not None}
    for name in entries:
        _check_name(name)
    return entries


def _entry(options: ort.SessionOptions, name: str) -> str | None:
    try:
        value: str = options.get_session_config_entry(name)
    except RuntimeError:  # the entry is not set
        return None
    return value


def _check_name(name: str) -> None:
    if name in _WEIGHTLESS:
        raise UsageError(
            f"session option {name!r} is refused",
            why="no execution provider that epctx drives takes models without weights",
            remedy="remove it",
        )
    allowed = name in OF_SPEC or name == _PREPARE_ONLY or _OF_AN_EP.fullmatch(name)
    if name.startswith("ep.") and not allowed:
        raise UsageError(f"there is no session option {name!r}", remedy=did_you_mean(name, OF_SPEC))


def _flag(entries: Mapping[str, str], name: str) -> bool:
    value = entries.get(name, "0")
    if value not in ("0", "1"):
        raise UsageError(f"session option {name!r} is {value!r}", remedy='write "0" or "1"')
    return value == "1"


def _path(entries: Mapping[str, str], name: str) -> Path | None:
    value = entries.get(name)
    return Path(value) if value else None
