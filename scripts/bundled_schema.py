"""Writes schemas/manifest.bundle.schema.json: `python -m scripts.bundled_schema`.

The manifest's schema with the options of all EPs that epctx knows inside, for editors that take one
file alone.
"""

from __future__ import annotations

import json
from pathlib import Path

from epctx.parsing.schema import apply, providers

PATH = Path(__file__).parent.parent / "schemas" / "manifest.bundle.schema.json"


def text() -> str:
    """The file's content."""
    schema = {**apply.with_options(providers.bundled()), "$id": "urn:epctx:schema:manifest.bundle"}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8", newline="\n")
