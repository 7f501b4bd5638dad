"""A folder of onnxruntime-genai's builder, as a user has it, to the tokens that genai generates.

    python -m tests.zoo.tokens FOLDER SCRATCH RESULT.json

`epctx init`, `epctx package`, then both folders are opened by onnxruntime-genai itself.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.kit import generating
from tests.kit.command_line import epctx

PROMPTS = tuple(tuple((7 * place + 11) % 250 + 4 for place in range(n)) for n in (1, 5, 17))
"""Short ones: the zoo's models have a context of 64 tokens."""


def compare(folder: Path, scratch: Path) -> dict[str, Any]:
    """What the commands say, and whether the tokens are the same."""
    source = scratch / "llm"
    shutil.copytree(folder, source, ignore=shutil.ignore_patterns("source", "cache"))
    for command in (["init", "llm"], ["package", "epctx.yaml"]):
        ran = epctx(*command, cwd=scratch, EPCTX_CACHE_DIR=str(scratch / "cache"))
        if ran.returncode:
            return {"command": command[0], "code": ran.returncode, "output": ran.stderr[-2000:]}
    made = scratch / "dist" / "llm.ortpackage" / "cpu" / "llm"
    tokens, found = (generating.tokens(each, PROMPTS) for each in (source, made))
    return {"code": 0, "tokens": tokens, "same": found == tokens}


if __name__ == "__main__":
    told = compare(Path(sys.argv[1]), Path(sys.argv[2]))
    Path(sys.argv[3]).write_text(json.dumps(told, indent=2), encoding="utf-8")
