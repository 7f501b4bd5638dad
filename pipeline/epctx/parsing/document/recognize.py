"""Which of any YAML files are manifests of epctx, for tools that hand over all that there are."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Final

from epctx import limits

_VERSION: Final = re.compile(rb"""^["']?schema_version["']?\s*:""", re.MULTILINE)
_OWN: Final = re.compile(rb"""^["']?(model_groups|execution_providers)["']?\s*:""", re.MULTILINE)
_LOCK: Final = re.compile(rb"^lock_version\s*:", re.MULTILINE)
_MODELINE: Final = re.compile(
    rb"^#\s*yaml-language-server:\s*\$schema=\S*(epctx\S*|/schemas/)manifest(\.bundle)?\.schema\.json\s*$",
    re.MULTILINE,
)


def is_manifest(path: Path) -> bool:
    """Whether a file is, or is meant to be, a manifest of epctx; it need not be valid YAML.

    Other tools' files have a `schema_version`, too. A manifest has one at its top, and besides a
    key that is epctx's own (`model_groups`, `execution_providers`), or a line that tells editors
    of epctx's schema. Nothing but keys at the beginning of a line is at the top.

    What cannot be read is none: whoever wants to know why asks `epctx validate` for it.
    """
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as stream:
            data = stream.read(limits.MANIFEST_BYTES.value).removeprefix(codecs.BOM_UTF8)
    except (OSError, ValueError):
        return False
    if not _VERSION.search(data) or _LOCK.search(data):
        return False
    return bool(_OWN.search(data) or _MODELINE.search(data))
