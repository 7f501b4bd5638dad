"""Options that a manifest gives on: to sessions of ONNX Runtime, and to plugin EPs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile import project
from tests.hostile.manifests import document
from tests.hostile.table import BUILD, Room, add

SESSION, PLUGIN = "session options", "plugin options"
OUTSIDE = (*BUILD, "--allow-outside")


def session(what: str, name: str, value: object, says: str, *, place: str = "group") -> None:
    """A row: an entry of `session_options`."""

    def change(m: dict[str, Any]) -> None:
        held = m["model_groups"]["g"] if place == "group" else m.setdefault("defaults", {})
        held["session_options"] = {name: value}

    document(SESSION, what, change, says)


_FILE = "reads and writes a file"
_KNOWN = "is not a session option that a build accepts"
_STATE = "session.moe_expert_counter_state_file"
session("a file that is read and written", _STATE, "../outside/secret", _FILE)
session("the same in defaults", _STATE, "../outside/secret", _FILE, place="defaults")
session("the same, not set", _STATE, None, _FILE)
for _name in (
    "session.optimized_model_filepath",
    "session.collect_node_memory_stats_to_file",
    "session.model_external_initializers_file_folder_path",
    "session.node_partition_config_file",
    "session.save_external_prepacked_constant_initializers",
    "session.profiling_file_prefix",
    "session.moe.offload.derived_cache_dir",
    "session.moe.offload.popularity_file",
    "ep.context_file_path",
    "ep.context_source_model_path",
):
    session(f"{_name}, a path outside", _name, "../outside/secret", "is refused")
for _name in (
    "session.intra_op_thread_affinities",
    "optimization.disable_specified_optimizers",
    "session.qdq_matmulnbits_block_size",
    "session.disable_prepacking",
    "session.graph_optimization_level",
    "session.kernel_dispatch_policy",
):
    session(f"{_name}, a path outside", _name, "../outside/secret", "must be")
session("one that ONNX Runtime does not know", "session.mine", "1", _KNOWN)
session("a path", "../outside/secret", "1", _KNOWN)
session("an escape sequence", "\x1b[2J", "1", _KNOWN)
session("of 1000 characters", "session." + "x" * 1000, "1", _KNOWN)
session("a number of 30 digits", "session.dynamic_block_base", "9" * 30, "must be a whole number")


def plugin(
    what: str,
    options: dict[str, object],
    says: str,
    make: Callable[[Room], object] = lambda room: None,
    **rest: Any,
) -> None:
    """A row: an EP that nobody knows, with these options."""

    def change(m: dict[str, Any]) -> None:
        m["execution_providers"]["ref"] = {
            "provider": "AcmeExecutionProvider",
            "allow_unknown_options": True,
            "options": options,
        }

    def both(room: Room) -> None:
        make(room)
        project.manifest(room, change)

    add(PLUGIN, what, both, says=says, **{"code": 3, **rest})


def library(what: str, make: Callable[[Path, Room], object], says: str, **rest: Any) -> None:
    """A row: what `plugin.library: libacme.so` is."""

    def put(room: Room) -> None:
        make(room.folder / "libacme.so", room)

    plugin(f"a library that is {what}", {"plugin.library": "libacme.so"}, says, put, **rest)


plugin("a library outside", {"plugin.library": "../outside/secret"}, "leads out of")
plugin("a library by an absolute path", {"plugin.library": "/etc/passwd"}, "is an absolute path")
plugin("a library by a URL", {"plugin.library": "https://a/libacme.so"}, "is a URL")
plugin("a library that is no text", {"plugin.library": ["a", "b"]}, "plugin.library")
plugin("a library of 5000 characters", {"plugin.library": "l" * 5000}, "plugin.library")
library("missing", lambda path, room: None, "there is no such file")
library("a folder", lambda path, room: path.mkdir(), "there is no such file")
library(
    "a link out",
    lambda path, room: path.symlink_to(room.outside / "secret"),
    "leads out of the manifest's folder",
    posix=True,
)
library(
    "a link to /dev/zero, outside being allowed",
    lambda path, room: path.symlink_to("/dev/zero"),
    "there is no such file",
    command=OUTSIDE,
    posix=True,
)
library("a FIFO", lambda path, room: os.mkfifo(path), "there is no such file", posix=True)
library("text", lambda path, room: path.write_text("text"), "refuses the library of Acme", code=5)
for _module in ("os", "antigravity", "tests.hostile", "../outside/secret", "\0", ""):
    plugin(
        f"a package {_module!r}", {"plugin.package": _module}, "no installed distribution", code=5
    )
plugin("a package without a plugin", {"plugin.package": "numpy"}, "no libraries of plugin EPs")
plugin("both", {"plugin.package": "numpy", "plugin.library": "a.onnx"}, "needs either plugin")
plugin("a misspelt option", {"plugin.libary": "a.onnx"}, "unknown option plugin.libary")
plugin(
    "a device that cannot be",
    {"plugin.library": "a.onnx", "plugin.device_index": "-1"},
    "plugin.device_index",
)
