"""The pages in a real browser: they open quietly, fit a phone, sort, and change with the light."""

import os
import shutil
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.browser

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
KINDS = ["single", "coloured", "unfinished", "regression", "rows", "evaluated", "outside", "several", "sweep"]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = os.environ.get("GOSSAMER_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium, or set GOSSAMER_CHROMIUM to its path")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def show(browser, pages):
    """Opens a page and afterwards holds it to silence: no message, no error, no request but for itself."""
    contexts, heard = [], []

    def opened(kind, width=1280, dark=False):
        context = browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        address = pages[kind].as_uri()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: heard.append(request.url) if not allowed(request.url, address) else None)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert heard == []


def allowed(url, address):
    return url == address or url.startswith("data:")


SIZES = """() => [...document.querySelectorAll("figure, svg.chart, .example img, .card")].map(
    (e) => [e.id || e.className.baseVal || e.className, e.getBoundingClientRect().toJSON()])"""
WORDS_OUTSIDE = """() => [...document.querySelectorAll("svg.chart text")].filter((text) => {
    const inner = text.getBoundingClientRect();
    const outer = text.closest("figure").getBoundingClientRect();
    const sticksOut = inner.left < outer.left || inner.right > outer.right || inner.bottom > outer.bottom;
    return inner.width && sticksOut;  // some words are only for a phone, or only for a screen
}).map((text) => text.textContent)"""
CUT_OFF = """() => [...document.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth)
    .map((e) => [e.className, e.scrollWidth, e.clientWidth])"""
TYPE = """() => Math.min(99, ...[...document.querySelectorAll("svg.chart text")].map(
    (text) => [parseFloat(getComputedStyle(text).fontSize), text.getScreenCTM()]).map(
    ([size, scale]) => size * Math.hypot(scale.a, scale.b)))"""


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_seen_and_nothing_sticks_out(show, kind):
    page = show(kind)
    for width in (2560, 1280, 768, 390):
        page.set_viewport_size({"width": width, "height": 844})
        sizes = page.evaluate(SIZES)
        assert sizes
        for name, box in sizes:
            assert box["width"] > 40, name
            assert box["height"] > 20, name
            assert box["left"] >= 0, name
            assert box["right"] <= width, name
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.wait_for_timeout(50)  # for the observer that stacks the cells of a table
        assert page.evaluate(CUT_OFF) == []
        assert page.evaluate(WORDS_OUTSIDE) == []
        assert page.evaluate(TYPE) > 9.5, "pixels, even on a phone"


def test_a_table_that_became_a_list_has_its_labels_once(show):
    page = show("outside", width=390)
    page.wait_for_timeout(50)
    place = page.locator("#figure-ood-scores .scroll")
    assert "stacked" in place.get_attribute("class")
    assert page.locator("#figure-ood-scores thead").bounding_box() is None
    assert page.locator("table.sortable").count() == 0


def column(page, number):
    return page.eval_on_selector_all(
        "table.sortable tbody", f"all => all.map(body => body.rows[0].cells[{number}].dataset.value)"
    )


def test_a_click_on_a_header_sorts_and_a_second_one_turns_it_round(show):
    page = show("several")
    head = page.locator("table.sortable thead th").nth(1)
    assert head.get_attribute("aria-sort") is None
    head.get_by_role("button").click()
    rising = [float(value) for value in column(page, 1)]
    assert rising == sorted(rising)
    assert head.get_attribute("aria-sort") == "ascending"
    head.get_by_role("button").click()
    assert [float(value) for value in column(page, 1)] == rising[::-1]
    assert head.get_attribute("aria-sort") == "descending"
    page.locator("table.sortable thead th").nth(0).get_by_role("button").click()
    assert column(page, 0) == ["rigl", "sgd", "ssvi", "vi"]
    assert head.get_attribute("aria-sort") is None


def test_the_keyboard_sorts_and_unfolds(show):
    page = show("several")
    page.locator("table.sortable thead button").nth(2).focus()
    page.keyboard.press("Enter")
    values = [float(value) for value in column(page, 2)]
    assert values == sorted(values)
    fold = page.locator(".fold").first
    rows = page.locator("table.sortable tbody").first.locator(".single")
    assert not rows.first.is_visible()
    fold.focus()
    page.keyboard.press("Space")
    assert fold.get_attribute("aria-expanded") == "true"
    assert [rows.nth(k).is_visible() for k in range(3)] == [True] * 3
    page.keyboard.press("Space")
    assert not rows.first.is_visible()


def test_dark_and_light_differ_and_the_button_changes_them(show):
    light, dark = show("single"), show("single", dark=True)
    pictures = [page.screenshot() for page in (light, dark)]
    assert pictures[0] != pictures[1]
    background = "getComputedStyle(document.body).backgroundColor"
    colours = [page.evaluate(background) for page in (light, dark)]
    assert light.locator("#theme").text_content() == "Dark"
    light.locator("#theme").click()
    assert light.evaluate(background) == colours[1] != colours[0]
    light.reload()
    assert light.evaluate(background) == colours[1], "the choice is kept"


def test_paper_is_light_and_cuts_no_figure(show):
    page = show("single", dark=True)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()") == "#1d2126"
    kept = page.eval_on_selector_all(".figure", "all => all.map(e => getComputedStyle(e).breakInside)")
    assert set(kept) == {"avoid"}
    assert page.locator("#theme").is_visible() is False
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_a_figure_can_be_saved_as_svg_in_light_colours(show, tmp_path):
    page = show("single", dark=True)
    with page.expect_download() as found:
        page.locator("#figure-layers .save").click()
    assert found.value.suggested_filename == "layers.svg"
    root = ElementTree.fromstring(found.value.path().read_bytes())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    dots = [one for one in root.iter() if one.get("class") == "dot c1"]
    assert len(dots) > 10
    assert "fill:rgb(31, 111, 178)" in dots[0].get("style").replace(" :", ":")
    assert not [one for one in root.iter() if one.get("class") == "hit"]
    assert page.evaluate("document.documentElement.dataset.theme") is None, "the page stays as it was"


def test_over_lines_the_values_of_all_methods_are_told(show):
    page = show("several")
    chart = page.locator("#figure-loss svg.chart")
    tip = page.locator("#figure-loss .tip")
    chart.hover()
    told = tip.inner_text().splitlines()
    assert told[0].startswith("epoch")
    assert [line.split(":")[0] for line in told[1:]] == ["ssvi", "vi", "rigl", "sgd"]
    page.mouse.move(0, 0)
    assert not tip.is_visible()


def test_a_comparison_links_to_the_reports_of_its_runs(show):
    page = show("several")
    page.locator(".fold").first.click()
    link = page.locator(".single a").first
    assert link.get_attribute("href") == "several/ssvi-0/report.html"
    assert link.is_visible()


CONTRAST = """() => {
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const found = numbers(getComputedStyle(e).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("h1, h2, h3, p, th, td, dt, dd, li, code, button, svg.chart text, .verdict *")]
    .filter((e) => e.textContent.trim() && e.getClientRects().length)
    .map((e) => {
      const style = getComputedStyle(e);
      const [a, b] = [light(numbers(e.ownerSVGElement ? style.fill : style.color)), light(behind(e))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.tagName + " " + e.textContent.slice(0, 30)];
    })
    .filter(([ratio]) => ratio < 4.5);
}"""


@pytest.mark.parametrize("kind", ["single", "unfinished", "several", "sweep"])
def test_all_words_have_contrast(show, kind):
    page = show(kind)
    assert page.evaluate(CONTRAST) == []
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(CONTRAST) == []
