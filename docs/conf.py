"""How Sphinx builds the documentation; `make docs` calls it."""

from pathlib import Path

from epctx import __version__

project = "epctx"
author = "The epctx authors"
release = version = __version__
extensions = ["myst_parser"]
myst_heading_anchors = 6
suppress_warnings = ["misc.highlighting_failure"]  # pages of errors show what is no YAML
smartquotes = False  # which make one dash of the two of an option
html_theme = "furo"
html_title = f"epctx {version}"
html_static_path = ["_static"]
html_js_files = ["site.js"]
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
# Summaries are fetched, which pages that are opened from the disk must not do.
html_show_search_summary = False
html_use_index = False
