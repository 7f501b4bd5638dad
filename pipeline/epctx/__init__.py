"""Declarative, reproducible builds of ONNX Runtime EPContext models.

Every verb of the command line is a function here; nothing heavy is imported before it is used.
"""

from __future__ import annotations

import importlib

from epctx._version import __version__

TYPE_CHECKING = False  # as of `typing`, which small processes need not import

if TYPE_CHECKING:
    from epctx import errors, runtime
    from epctx.api import (
        bisect,
        build,
        diff,
        doctor,
        explain,
        import_ep_weight_sharing,
        init,
        inspect,
        package,
        plan,
        report,
        reproduce,
        schema,
        sign,
        validate,
        verify,
    )
    from epctx.commands.compile_model.command import compile_model
    from epctx.commands.run import run

__all__ = [
    "__version__",
    "bisect",
    "build",
    "compile_model",
    "diff",
    "doctor",
    "errors",
    "explain",
    "import_ep_weight_sharing",
    "init",
    "inspect",
    "package",
    "plan",
    "report",
    "reproduce",
    "run",
    "runtime",
    "schema",
    "sign",
    "validate",
    "verify",
]

_HOMES = dict.fromkeys(__all__[1:], "epctx.api") | {
    "compile_model": "epctx.commands.compile_model.command",
    "errors": "epctx.errors",
    "run": "epctx.commands.run",
    "runtime": "epctx.runtime",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(home := importlib.import_module(_HOMES[name]), name, home)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
