"""Declarative, reproducible builds of ONNX Runtime EPContext models.

Every command of the command line is a function here. Heavy modules are imported at their first use.
"""

from __future__ import annotations

import importlib

from epctx._version import __version__

TYPE_CHECKING = False  # replaces `typing.TYPE_CHECKING`: small processes do not import `typing`

if TYPE_CHECKING:
    from epctx import errors, runtime
    from epctx.api import (
        bisect,
        build,
        diff,
        doctor,
        env,
        explain,
        import_ep_weight_sharing,
        import_qnn_context,
        init,
        inspect,
        kit,
        package,
        plan,
        pull,
        push,
        report,
        reproduce,
        schema,
        sign,
        validate,
        verify,
    )
    from epctx.commands.cache import (
        cache_gc,
        cache_info,
        cache_keygen,
        cache_ls,
        cache_pull,
        cache_push,
        cache_verify,
    )
    from epctx.commands.compile_model.command import compile_model
    from epctx.commands.run import run

__all__ = [
    "__version__",
    "bisect",
    "build",
    "cache_gc",
    "cache_info",
    "cache_keygen",
    "cache_ls",
    "cache_pull",
    "cache_push",
    "cache_verify",
    "compile_model",
    "diff",
    "doctor",
    "env",
    "errors",
    "explain",
    "import_ep_weight_sharing",
    "import_qnn_context",
    "init",
    "inspect",
    "kit",
    "package",
    "plan",
    "pull",
    "push",
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
    **{name: "epctx.commands.cache" for name in __all__ if name.startswith("cache_")},
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
