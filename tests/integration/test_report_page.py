"""The page of `epctx report` in a real browser: it draws, filters, can be used by keys alone."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from msgspec.structs import replace
from playwright.sync_api import Browser, Locator, Page, expect

from epctx import api, codec
from epctx.commands.report import command
from epctx.engine.report import BuildReport
from epctx.stages.report import ModelReport
from scripts import random_weights
from tests.kit import browsing
from tests.kit.reports import chain, failing, report

PIXELS = """canvas => {
    const { width, height } = canvas;
    const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    const found = new Map();
    for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] < 255) continue;
        const colour = `${data[at]},${data[at + 1]},${data[at + 2]}`;
        found.set(colour, (found.get(colour) ?? 0) + 1);
    }
    return [...found].sort((a, b) => b[1] - a[1]).slice(0, 12).map(([colour]) => colour);
}"""
FRAME = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
"""Waits until what was asked for has been drawn."""
RECORD = """
    window.texts = [];
    window.boxes = [];
    const own = CanvasRenderingContext2D.prototype;
    const { clearRect, fillText, roundRect } = own;
    const placed = (context, x, y) => {
        const { a, d, e, f } = context.getTransform();
        const density = devicePixelRatio;
        return { scale: a / density, x: (x * a + e) / density, y: (y * d + f) / density };
    };
    own.clearRect = function (...args) {
        window.texts = [];
        window.boxes = [];
        clearRect.apply(this, args);
    };
    own.fillText = function (text, x, y) {
        const { scale, ...at } = placed(this, x, y);
        const size = parseFloat(/([0-9.]+)px/.exec(this.font)[1]) * scale;
        window.texts.push({ text, size, ...at, width: this.measureText(text).width * scale });
        fillText.call(this, text, x, y);
    };
    own.roundRect = function (x, y, width, height, ...rest) {
        const { scale, ...at } = placed(this, x, y);
        const size = { width: width * scale, height: height * scale };
        if (height < width) window.boxes.push({ ...at, ...size });
        roundRect.call(this, x, y, width, height, ...rest);
    };
"""
"""Keeps the words and boxes of the last drawing, in pixels of its frame."""
BLANK = """
    window.frames = [];
    const small = new OffscreenCanvas(64, 64).getContext("2d", { willReadFrequently: true });
    const empty = () => {
        small.clearRect(0, 0, 64, 64);
        small.drawImage(document.querySelector("canvas"), 0, 0, 64, 64);
        return !small.getImageData(0, 0, 64, 64).data.some(value => value > 0);
    };
    const painted = new MessageChannel();
    painted.port1.onmessage = () => window.frames.push(empty());
    const next = () => {
        painted.port2.postMessage(null);
        requestAnimationFrame(next);
    };
    addEventListener("DOMContentLoaded", () => {
        window.frames.push(empty());
        requestAnimationFrame(next);
    });
"""
"""Notes when the page is loaded, and after each frame, whether the first graph is blank."""
LIGHT_EP, LIGHT_LEFT = "53,104,212", "217,130,11"
DARK_EP, DARK_LEFT = "111,155,255", "242,165,60"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing.chromium() as found:
        yield found


def write(folder: Path, made: BuildReport) -> Path:
    path = folder / "made.build.json"
    path.write_bytes(codec.encode(made))
    command.write(path, folder / "page.html")
    return folder / "page.html"


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[browsing.Watched]:
    """A page of made reports; whatever the test does, nothing goes wrong in it."""
    found = browsing.Watched(browser, write(tmp_path, report()))
    yield found
    assert found.faults == []
    assert found.requests == [(tmp_path / "page.html").as_uri()]
    found.context.close()


def show_nodes(opened: browsing.Watched) -> None:
    opened.drawn("units")
    opened.page.get_by_role("button", name="Nodes").first.click()
    opened.drawn("nodes")


def side(page: Page) -> Locator:
    """What is said of what is selected; a page answers when it comes to it, so `expect` it."""
    return page.locator(".graph-side").first


def expect_node(page: Page, node: int) -> None:
    expect(side(page).get_by_text(f"node {node}", exact=True).first).to_be_visible()


def expect_colours(page: Page, *wanted: str, without: str = "") -> None:
    """Wait until the first graph is drawn in these colours, and not in that one."""
    page.wait_for_function(
        f"""([wanted, without]) => {{
            const found = ({PIXELS})(document.querySelector("canvas"));
            return wanted.every(each => found.includes(each)) && !found.includes(without);
        }}""",
        arg=[list(wanted), without],
    )


def test_it_draws_each_ep_and_what_was_left(opened: browsing.Watched) -> None:
    page = opened.page
    show_nodes(opened)
    expect_colours(page, LIGHT_EP, LIGHT_LEFT)
    page.get_by_role("button", name="Partitions").first.click()
    opened.drawn("units")
    page.get_by_role("button", name="default EP").first.click()
    expect_colours(page, without=LIGHT_LEFT)


def test_a_graph_is_never_blank_on_a_busy_machine(browser: Browser, tmp_path: Path) -> None:
    """Each load has a sixth of the CPU, and its window gets another size."""
    path = write(tmp_path, report(chain(60)))
    for _ in range(2):
        found = browsing.Watched(browser, path, script=BLANK, slowdown=6)
        seen = found.page.evaluate("() => window.frames.length")
        found.page.set_viewport_size({"width": 1280, "height": 800})
        found.page.wait_for_function("seen => window.frames.length > seen + 2", arg=seen)
        blank = found.page.evaluate("() => window.frames")
        assert not any(blank), "a painted frame without a graph"
        found.context.close()


def test_a_graph_is_drawn_again_when_the_browser_lost_it(opened: browsing.Watched) -> None:
    opened.drawn("units")
    canvas = opened.page.locator("canvas").first
    canvas.evaluate("canvas => { canvas.width = canvas.width; }")
    assert LIGHT_EP not in canvas.evaluate(PIXELS)
    canvas.dispatch_event("contextrestored")
    assert LIGHT_EP in canvas.evaluate(PIXELS)


def test_the_theme_follows_the_system_and_the_reader(
    opened: browsing.Watched, browser: Browser, tmp_path: Path
) -> None:
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = opened.page.evaluate(ground)
    opened.page.get_by_role("button", name="Dark").click()
    dark = opened.page.evaluate(ground)
    assert light != dark
    expect_colours(opened.page, DARK_EP, DARK_LEFT)
    opened.page.reload()
    opened.page.wait_for_selector("html[data-ready]")
    assert opened.page.evaluate(ground) == dark, "the choice was forgotten"
    opened.requests.pop()
    other = browsing.Watched(browser, tmp_path / "page.html", scheme="dark")
    assert other.page.evaluate(ground) == dark
    assert other.faults == []
    other.context.close()


def test_keys_alone_follow_the_graph_and_what_is_selected_is_said(
    opened: browsing.Watched,
) -> None:
    page = opened.page
    show_nodes(opened)
    assert page.locator(".graph-side").first.get_attribute("aria-live") == "polite"
    page.locator("canvas").first.focus()
    for key, node in (("Home", 0), ("ArrowDown", 1), ("ArrowDown", 2), ("ArrowDown", 3)):
        page.keyboard.press(key)
        expect_node(page, node)
    expect(side(page)).to_contain_text("npu: excluded")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("+")
    page.keyboard.press("0")
    expect_node(page, 2)
    page.keyboard.press("Escape")
    expect(side(page)).to_contain_text("Nothing is selected")


def test_every_control_can_be_reached_by_tab(opened: browsing.Watched) -> None:
    page = opened.page
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("() => document.activeElement.outerHTML.split('>')[0]"))
    wanted = (
        "<canvas",
        'data-level="units"',
        'data-zoom="fit"',
        'data-ep="-1"',
        "<summary",
        "Skip",
    )
    text = " ".join(reached) + " Skip" * any('class="skip"' in each for each in reached)
    assert not [each for each in wanted if each not in text]


@pytest.mark.parametrize(
    ("scheme", "made"),
    [
        ("light", report),
        ("dark", failing),
        pytest.param("dark", report, marks=pytest.mark.soak),
        pytest.param("light", failing, marks=pytest.mark.soak),
    ],
)
def test_axe_finds_nothing_to_object_to(
    browser: Browser, tmp_path: Path, scheme: browsing.Scheme, made: Callable[[], BuildReport]
) -> None:
    found = browsing.Watched(browser, write(tmp_path, made()), scheme=scheme)
    page = found.page
    page.evaluate("() => document.querySelectorAll('details').forEach(each => each.open = true)")
    page.locator("canvas").first.focus()
    page.keyboard.press("End")
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
    assert len(results.response["passes"]) > 30
    found.context.close()


def test_a_search_finds_and_goes_there_and_the_table_says_the_same(
    opened: browsing.Watched,
) -> None:
    page = opened.page
    search = page.locator(".graph-tools input").first
    search.fill("topk")
    page.locator(".nodes summary").first.click()
    rows = page.locator(".nodes tbody tr")
    told = [f"{n + 1} node {n} TopK default EP npu: excluded" for n in (3, 7, 11)]
    expect(rows).to_have_text(told, use_inner_text=True)
    search.press("Enter")
    search.press("Enter")
    expect(side(page)).to_contain_text("node 7")
    expect(page.locator(".nodes tr[aria-current] td").first).to_have_text("8")
    rows.nth(2).get_by_role("button").click()
    expect(side(page)).to_contain_text("node 11")


def test_a_click_selects_and_a_unit_opens_to_its_nodes(opened: browsing.Watched) -> None:
    page = opened.page
    page.get_by_role("button", name="Partitions").first.click()
    opened.drawn("units")
    canvas = page.locator("canvas").first
    canvas.focus()
    page.keyboard.press("Home")
    expect(side(page)).to_contain_text("Partition 1: 3 nodes")
    page.get_by_role("button", name="Show its nodes").first.click()
    opened.drawn("nodes")
    expect(side(page)).to_contain_text("node 0")
    page.keyboard.press("Escape")
    box = canvas.bounding_box()
    assert box is not None
    canvas.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    expect(side(page)).to_contain_text("node")


def test_filters_of_checks_and_numbers(opened: browsing.Watched) -> None:
    page = opened.page
    checks = page.locator("[data-filters=checks-rows]")
    visible = page.locator("#checks-rows tbody tr:visible")
    expect(visible).to_have_count(2)
    checks.get_by_role("button", name="Not checkable").click()
    expect(visible).to_have_count(1)
    expect(visible.first).to_contain_text("not on this host")
    expect(checks.get_by_role("status")).to_have_text("1 of 2")
    checks.get_by_role("button", name="All").click()
    checks.locator("input").fill("sums")
    expect(visible).to_have_count(1)
    page.locator("[data-filters=numbers-rows]").get_by_role("button", name="Beyond").click()
    expect(page.locator("#numbers-rows tbody tr:visible")).to_contain_text("far")


def test_it_prints_with_everything_open(opened: browsing.Watched) -> None:
    page = opened.page
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    expect(page.locator("#timeline table")).to_be_visible()
    expect(page.locator(".sections")).to_be_hidden()
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    expect(page.locator("#timeline table")).to_be_hidden()


def write_compared(folder: Path, old: BuildReport, new: BuildReport) -> Path:
    paths = folder / "old.build.json", folder / "new.build.json"
    for path, made in zip(paths, (old, new), strict=True):
        path.write_bytes(codec.encode(made))
    api.diff(*paths, html=folder / "page.html")
    return folder / "page.html"


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
def test_two_builds_on_one_page(browser: Browser, tmp_path: Path, scheme: browsing.Scheme) -> None:
    path = write_compared(tmp_path, report(), failing())
    found = browsing.Watched(browser, path, scheme=scheme)
    page = found.page
    page.get_by_role("link", name="nose@edge").click()
    nose = page.locator("section.group", has_text="nose@edge")
    expect(nose.get_by_text("The new one failed")).to_be_visible()
    page.evaluate("() => document.querySelectorAll('details').forEach(each => each.open = true)")
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
    assert found.faults == [] and found.requests == [path.as_uri()]
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    found.context.close()


def many(count: int) -> BuildReport:
    """As many groups, the last of which failed."""
    built, _, failed, *_ = failing().groups
    groups = (*(replace(built, group=f"g{number}") for number in range(1, count)), failed)
    return replace(failing(), groups=groups)


def test_of_many_groups_the_failed_ones_are_open_and_a_link_opens_any(
    browser: Browser, tmp_path: Path
) -> None:
    found = browsing.Watched(browser, write(tmp_path, many(60)))
    page = found.page
    bodies = page.locator("#groups-list > section > details")
    expect(bodies).to_have_count(60)
    expect(page.locator("#groups-list > section > details[open]")).to_have_count(1)
    expect(page.locator("#group-1").get_by_text("float16 overflows")).to_be_visible()
    assert page.evaluate("() => document.documentElement.scrollHeight") < 60 * 60 + 8000
    link = page.locator("a[href='#group-7']")
    link.click()
    expect(bodies.nth(6)).to_have_attribute("open", "")
    page.wait_for_function("() => scrollY > 1000")
    bodies.nth(6).locator("> summary").click()
    link.click()
    expect(bodies.nth(6), "the same link again").to_have_attribute("open", "")
    page.get_by_role("button", name="Open all").click()
    expect(page.locator("#groups-list > section > details[open]")).to_have_count(60)
    page.get_by_role("button", name="Close all").click()
    expect(page.locator("#groups-list > section > details[open]")).to_have_count(0)
    page.locator("[data-filters=groups-list]").get_by_role("button", name="Failed").click()
    expect(page.locator("#groups-list > section:visible")).to_have_count(1)
    link.click()
    expect(page.locator("#group-7"), "a filter hides what a link points to").to_be_visible()
    assert found.faults == []
    found.context.close()


def test_a_reference_from_elsewhere_opens_its_group(browser: Browser, tmp_path: Path) -> None:
    found = browsing.Watched(browser, write(tmp_path, many(12)))
    found.page.goto(f"{(tmp_path / 'page.html').as_uri()}#group-5")
    found.page.reload()
    found.page.wait_for_selector("html[data-ready]")
    expect(found.page.locator("#group-5 canvas")).to_be_visible()
    found.page.wait_for_selector("#group-5 details.graph[data-drawn]")
    found.context.close()


def test_printing_opens_every_group_with_its_graph(browser: Browser, tmp_path: Path) -> None:
    found = browsing.Watched(browser, write(tmp_path, many(12)))
    page = found.page
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#group-3 canvas").is_visible()
    assert LIGHT_LEFT in page.locator("#group-3 canvas").evaluate(PIXELS)
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    expect(page.locator("#group-3 canvas")).to_be_hidden()
    assert found.faults == []
    found.context.close()


CUT = """() => [...document.querySelectorAll("body *")].filter(each => {
    const skipped = each.closest(".hidden, .skip, .lines, svg, canvas");
    if (skipped || !each.checkVisibility()) return false;
    const hides = getComputedStyle(each).overflowX !== "visible";
    const beyond = each.getBoundingClientRect().right > innerWidth + 1;
    return beyond || (hides && each.scrollWidth > each.clientWidth + 1);
}).map(each => each.outerHTML.slice(0, 200))"""
"""The elements that do not fit: beyond the window, or wider within than their frame."""


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("made", [report, failing])
def test_nothing_is_cut(
    browser: Browser, tmp_path: Path, made: Callable[[], BuildReport], width: int
) -> None:
    long = chain(12, name="a_name_that_is_rather_long_and_has_no_space_" * 4 + "{}")
    report_of = replace(made(), name="a_name_" * 14, revision="0123456789" * 4)
    groups = (replace(report_of.groups[0], models=(long,)), *report_of.groups[1:])
    path = write(tmp_path, replace(report_of, groups=groups))
    found = browsing.Watched(browser, path, width=width)
    found.page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
    found.page.locator(".nodes").first.scroll_into_view_if_needed()
    found.page.wait_for_selector(".nodes tbody tr")
    assert found.page.evaluate(CUT) == []
    assert found.page.evaluate("() => document.documentElement.scrollWidth") <= width
    found.context.close()


def test_on_a_phone_each_value_of_a_table_has_its_heading(browser: Browser, tmp_path: Path) -> None:
    found = browsing.Watched(browser, write(tmp_path, report()), width=400)
    cell = found.page.locator("#checks-rows tbody tr").first.locator("td").first
    told = cell.evaluate("cell => getComputedStyle(cell, '::before').content")
    assert "Outcome" in told
    expect(found.page.locator("#checks-rows thead")).to_be_hidden()
    found.context.close()


def test_without_scripts_it_can_be_read(browser: Browser, tmp_path: Path) -> None:
    path = write(tmp_path, failing())
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    expect(page.get_by_role("link", name="nose@edge").first).to_be_visible()
    expect(page.locator("#group-2").get_by_text("[W] overflow")).to_be_visible()
    expect(page.locator(".filters").first).to_be_hidden()
    page.locator("#group-3 > details > summary").click()
    expect(page.locator("#group-3 noscript p").first).to_be_visible()
    expect(page.locator("canvas").first, "a frame with nothing in it").to_be_hidden()
    context.close()


def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path) -> None:
    hostile = "</script><script>alert({})</script><img src=x onerror=alert(2)>"
    model = chain(12, name=hostile, why=hostile.format("why"))
    found = browsing.Watched(browser, write(tmp_path, report(model)))
    page = found.page
    page.locator("canvas").first.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    expect(side(page)).to_contain_text("onerror=alert(2)")
    page.locator(".nodes summary").first.click()
    page.locator(".nodes tbody tr").nth(11).wait_for()
    expect(page.locator(".nodes tbody tr")).to_have_count(12)
    page.wait_for_timeout(200)
    assert found.faults == [] and found.requests == [(tmp_path / "page.html").as_uri()]
    assert page.locator("img").count() == 0
    found.context.close()


def test_the_policy_stops_what_is_not_the_pages_own(opened: browsing.Watched) -> None:
    """That nothing happens above is not because nothing could be seen."""
    opened.page.evaluate(
        "() => document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.ran = true'}))"
    )
    assert opened.page.evaluate("() => window.ran") is None
    assert any("Content Security Policy" in fault for fault in opened.faults)
    opened.faults.clear()


def test_ten_thousand_nodes_open(browser: Browser, tmp_path: Path) -> None:
    found = browsing.Watched(browser, write(tmp_path, report(chain(10_000, left=50))))
    found.drawn("units")
    found.page.get_by_role("button", name="Nodes").first.click()
    found.drawn("nodes")
    found.page.locator("canvas").first.evaluate(
        """async canvas => {
            for (let count = 0; count < 10; count++) {
                const turn = { deltaY: -120, ctrlKey: true, cancelable: true };
                canvas.dispatchEvent(new WheelEvent("wheel", turn));
                await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
            }
        }"""
    )
    assert found.faults == []
    found.context.close()


def built_vision(folder: Path, model: str, left: list[str]) -> tuple[BuildReport, Path]:
    """A light model of the onnx wheel, of which the manifest leaves some ops; and its page."""
    random_weights.convert(random_weights.light_models()[model], folder / f"{model}.onnx")
    manifest = folder / "vision.yaml"
    manifest.write_text(
        f"schema_version: 1\nname: vision\nmodels: {{{model}: {{path: {model}.onnx}}}}\n"
        "execution_providers: {npu: {provider: ReferenceExecutionProvider}}\n"
        f"model_groups:\n  classify:\n    models: [{model}]\n    execution_providers: [npu]\n"
        f"    partition: {{exclude: {{op_types: [{', '.join(left)}]}}}}\n",
        encoding="utf-8",
    )
    built = api.build(manifest, out=folder / "dist")
    return built, api.report(manifest, dist=folder / "dist")


def test_a_graph_of_seventeen_parts_can_be_read_as_it_opens(
    browser: Browser, tmp_path: Path
) -> None:
    _, path = built_vision(tmp_path, "squeezenet", ["Concat"])
    found = browsing.Watched(browser, path, script=RECORD)
    found.drawn("units")
    texts, boxes = found.page.evaluate("() => [window.texts, window.boxes]")
    frame = found.page.locator("canvas").first.bounding_box()
    assert frame is not None and len(boxes) == 17
    titles = [each["text"] for each in texts if each["text"].startswith(("Partition", "Concat"))]
    assert sorted(titles) == ["Concat"] * 8 + sorted(
        f"Partition {n}: {count} nodes" for n, count in enumerate([9, 6, 7, 6, 7, 6, 6, 6, 4], 1)
    )
    assert sum(each["text"].startswith("reference: excluded") for each in texts) == 8
    for each in texts:
        assert each["size"] >= 11, each
        inside = [
            box
            for box in boxes
            if box["x"] <= each["x"] <= each["x"] + each["width"] <= box["x"] + box["width"]
            and box["y"] <= each["y"] - each["size"] / 2
            and each["y"] + each["size"] / 2 <= box["y"] + box["height"]
        ]
        assert len(inside) == 1, each
    for box in boxes:
        assert box["x"] >= 0 and box["x"] + box["width"] <= frame["width"]
        assert box["y"] >= 0 and box["y"] + box["height"] <= frame["height"]
    found.context.close()


def test_words_are_never_smaller_than_can_be_read(browser: Browser, tmp_path: Path) -> None:
    found = browsing.Watched(browser, write(tmp_path, report(chain(60))), script=RECORD)
    show_nodes(found)
    told = [each["text"] for each in found.page.evaluate("() => window.texts")]
    assert {"node 0", "node 3", "npu: excluded"} <= set(told), "it opens where the model starts"
    sizes = []
    for _ in range(12):
        found.page.get_by_role("button", name="Zoom out").first.click()
        found.page.evaluate(FRAME)
        sizes.append([each["size"] for each in found.page.evaluate("() => window.texts")])
    assert all(size >= 11 for each in sizes for size in each)
    assert sizes[0] and not sizes[-1], "so small, boxes have no words"
    found.context.close()


@pytest.mark.soak
def test_densenet_with_nodes_left_in_light_and_dark(browser: Browser, tmp_path: Path) -> None:
    """Its screenshots are kept in the folder that is printed, to be looked at."""
    built, page = built_vision(tmp_path, "densenet121", ["AveragePool", "GlobalAveragePool"])
    (model,) = built.groups[0].models
    assert isinstance(model, ModelReport) and len(model.declined) == 4
    colours: dict[browsing.Scheme, str] = {"light": LIGHT_LEFT, "dark": DARK_LEFT}
    for scheme, colour in colours.items():
        found = browsing.Watched(browser, page, scheme=scheme)
        found.drawn("units")
        assert colour in found.page.locator("canvas").first.evaluate(PIXELS)
        found.page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
        assert found.faults == []
        found.context.close()
    print(f"\nscreenshots in {tmp_path}")
