"""Fuzz one target: `python -m tests.fuzz TARGET [libFuzzer's options] [corpus folders]`.

Coverage guides the mutations: every branch of epctx that an input takes first makes it a seed.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["epctx"]):
    from epctx.providers.onnxruntime.qnn.provider import QNNExecutionProvider
    from tests.fuzz.targets import TARGETS, recognize_none


def main() -> None:
    """Run until time is up or something is found; libFuzzer exits the process."""
    name = sys.argv.pop(1)
    QNNExecutionProvider.recognizes = recognize_none  # type: ignore[method-assign]
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
