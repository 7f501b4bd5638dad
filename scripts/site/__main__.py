"""Builds the documentation: `python -m scripts.site [FOLDER]`, which is build/docs by default.

Whatever Sphinx warns about is an error, and so is a link that leads nowhere, or that loads
something from elsewhere. The pages need no server: build/docs/index.html opens from the disk.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from scripts.site.gather import ROOT, gather
from scripts.site.links import check


def build(folder: Path) -> list[str]:
    """Build the site, and say what is wrong with its links.

    Raises:
        SystemExit: Sphinx warns of something.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        sources, trees = Path(scratch, "sources"), Path(scratch, "trees")
        gather(sources)
        options = ["--fail-on-warning", "--nitpicky", "--quiet", "--conf-dir", str(ROOT / "docs")]
        if sphinx([*options, "-d", str(trees), str(sources), str(folder)]):
            raise SystemExit("the documentation was not built: see the warnings above")
    return check(folder)


if __name__ == "__main__":
    place = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "docs"
    wrong = build(place)
    print("\n".join(wrong) or f"{place}/index.html: {len(list(place.rglob('*.html')))} pages")
    sys.exit(bool(wrong))
