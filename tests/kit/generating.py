"""Tokens that onnxruntime-genai itself generates with a folder, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_SECONDS = 120
_PROGRAM = """
import json, sys
import onnxruntime_genai as og

folder, prompts, count, between, again, options = json.loads(sys.argv[1])
config = og.Config(folder)
for name, given in options.items():
    import onnxruntime_qnn as qnn
    og.register_execution_provider_library(f"{name}ExecutionProvider", qnn.get_library_path())
    for key, value in given.items():
        config.set_provider_option(name, key, value)
model = og.Model(config)
found = []
for prompt in prompts:
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(do_sample=False)
    generator = og.Generator(model, parameters)
    tokens, last = [], []
    turns = prompt if isinstance(prompt[0], list) else [prompt]
    for number, turn in enumerate(turns, 1):
        generator.append_tokens(last + turn)
        end = len(tokens) + (count if number == len(turns) else between)
        while len(tokens) < end and not generator.is_done():
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
        last = tokens[-1:] if again else []
    found.append(tokens)
print("tokens:" + json.dumps(found))
"""

PROMPTS = tuple(tuple((7 * i + 11) % 250 + 4 for i in range(n)) for n in (1, 2, 5, 64, 65, 130))
"""One token, less than a window, a whole one, several."""


def tokens(
    folder: Path,
    prompts: Sequence[Sequence[int] | Sequence[Sequence[int]]] = PROMPTS,
    *,
    count: int = 12,
    between: int = 0,
    again: bool = True,
    options: dict[str, dict[str, str]] | None = None,
) -> list[list[int]]:
    """The most likely tokens after each prompt.

    Args:
        prompts: of tokens, or of the turns of a conversation, each of tokens.
        between: how many tokens are generated after each turn but the last.
        again: the next turn begins with the last of these, which onnxruntime-genai has not fed.
        options: of EPs that are plugins, by the name that genai has for them.
    """
    asked = json.dumps([str(folder), prompts, count, between, again, options or {}])
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, asked],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    line = next(line for line in ran.stdout.splitlines() if line.startswith("tokens:"))
    found: list[list[int]] = json.loads(line.removeprefix("tokens:"))
    return found
