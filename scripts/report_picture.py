"""Make the picture of a report that README shows: docs/images/report.png.

    python -m scripts.report_picture

A real build, by QNN, of the quickstart's transformer and SqueezeNet, of which some ops are left to
the default EP; its page as Chromium shows it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import FloatRect, sync_playwright

import epctx
from scripts import quickstart_models

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "report.png"
SIZE = 1440, 620
SCALE = 0.85
"""Pixels of the picture to one of the page: README shows it at about half its size."""
MANIFEST = """\
schema_version: 1
name: phone
models:
  vision: {path: models/squeezenet.onnx}
  prefill:
    path: models/tiny_llm_npu.onnx
    dimensions: {batch: 1, sequence: 32, past: 1, total: 33}
  decode:
    path: models/tiny_llm_npu.onnx
    dimensions: {batch: 1, sequence: 1, past: 32, total: 33}
execution_providers:
  htp: {provider: QNNExecutionProvider, options: {soc_model: sc8380xp}}
model_groups:
  eye:
    models: [vision]
    execution_providers: [htp]
    partition: {exclude: {op_types: [MaxPool, Softmax]}}
  llm:
    models: [prefill, decode]
    execution_providers: [htp]
    sharing_groups: {main: [prefill, decode]}
    verify:
      inputs: {ranges: {input_ids: [0, 2047], past_mask: [0, 1], attention_bias: [-1, 0]}}
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        quickstart_models.write(folder / "models")
        manifest = folder / "phone.yaml"
        manifest.write_text(MANIFEST, encoding="utf-8")
        epctx.build(manifest, out=folder / "dist", cache=False)
        picture(epctx.report(manifest, dist=folder / "dist"))


def picture(page: Path) -> None:
    """Take the picture of a page."""
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        width, height = SIZE
        shown = browser.new_page(
            viewport={"width": width, "height": height},
            device_scale_factor=SCALE,
            color_scheme="light",
        )
        shown.goto(page.resolve().as_uri())
        shown.locator("details.graph").first.scroll_into_view_if_needed()
        shown.wait_for_selector("details.graph[data-drawn]")
        shown.evaluate("() => scrollTo({ top: 0, behavior: 'instant' })")
        graph = shown.locator(".graph-body").first.bounding_box()
        assert graph is not None
        end = graph["y"] + graph["height"] + 6
        clip = FloatRect(x=0, y=0, width=width, height=end)
        shown.screenshot(path=PICTURE, full_page=True, clip=clip)
        browser.close()


if __name__ == "__main__":
    main()
