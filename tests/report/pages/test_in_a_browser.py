"""The pages in a headless Chromium: what scripts do, keys, phones, paper, and that nothing asks the network.

Needs playwright (the extra ``browser``) and a Chromium, on the PATH or playwright's own; skipped without them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_corpora import MADE, found, reproduced

from fuzzcompile.corpus.store import Store
from fuzzcompile.report.pages.corpus_page import page_of_corpus

pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE = {"viewport": {"width": 375, "height": 700}, "is_mobile": True, "has_touch": True}
MANY = 220
EVIL = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install fuzzcompile[browser]")
    with api.sync_playwright() as playwright:
        chromium = CHROMIUM or playwright.chromium.executable_path
        if not Path(chromium).exists():
            pytest.skip("needs a Chromium on the PATH, or that of `playwright install chromium`")
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    with Store.open(folder / "corpus.db") as store:
        for number in range(MANY):
            found(store, number, culprit_name=f"rewrite_{number:04d}")
        reproduced(store, "F1", f"# {EVIL}\nimport torch\n\n\ndef make(): return 1\n", shown={"error_log": EVIL})
        path = folder / "report.html"
        path.write_text(page_of_corpus(store, MADE), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The report in a new tab; the marker's parameter holds what the browser is like."""
    tab = browser.new_page(**getattr(request, "param", {}))
    seen: list[str] = []
    tab.on("pageerror", lambda error: seen.append(str(error)))
    tab.on("console", lambda message: seen.append(message.text) if message.type == "error" else None)
    tab.on("request", lambda asked: seen.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None)
    tab.goto(report.as_uri())
    yield tab
    tab.close()
    assert seen == [], "an error, or a request"


def rows(tab: Any) -> list[str]:
    return list(tab.eval_on_selector_all("#list li:not([hidden]) .id", "all => all.map((each) => each.textContent)"))


def eventually(tab: Any, expression: str) -> None:
    """Wait until it holds; playwright's own way evaluates text, which the page's policy forbids."""
    for _ in range(100):
        if tab.evaluate(expression):
            return
        tab.wait_for_timeout(50)
    raise AssertionError(expression)


def test_the_list_is_searched_filtered_and_sorted(opened):
    assert len(rows(opened)) == 200 and "220 findings" in opened.text_content("#shown")
    opened.click("#more")
    assert len(rows(opened)) == MANY
    opened.fill("#search", "rewrite_0042")
    assert rows(opened) == ["F43"] and "1 of 220 findings" in opened.text_content("#shown")
    opened.fill("#search", "no such word")
    assert rows(opened) == [] and "No finding fits" in opened.text_content("#shown")
    opened.click("button[type=reset]")
    opened.select_option("#sort", "name")
    eventually(opened, "document.querySelector('#list .id').textContent === 'F1'")
    opened.select_option("[data-key=severity]", "silent")
    assert len(rows(opened)) == MANY


def test_a_finding_opens_is_highlighted_and_copied(opened):
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.goto(f"{opened.url}#F1")
    opened.wait_for_selector("#page h1")
    assert opened.title().startswith("F1: ") and opened.is_hidden("#overview")
    assert opened.locator(".hljs-keyword").count() > 0
    opened.locator(".copied .copy").first.click()
    opened.wait_for_selector("text=Copied")
    assert opened.evaluate("navigator.clipboard.readText()").startswith(f"# {EVIL}\nimport torch\n")
    assert "taken" not in opened.title() and opened.locator("#page img, #page script").count() == 0


def test_keys_lead_through_the_list_and_from_finding_to_finding(opened):
    opened.keyboard.press("/")
    eventually(opened, "document.activeElement.id === 'search'")
    opened.keyboard.type("rewrite_000")
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowDown")
    focused = opened.evaluate("document.activeElement.querySelector('.id').textContent")
    assert focused == rows(opened)[1]
    opened.keyboard.press("Enter")
    opened.wait_for_selector("#page h1")
    assert opened.url.endswith(f"#{focused}")
    opened.keyboard.press("ArrowRight")
    eventually(opened, f"location.hash === '#{rows(opened)[2]}'")
    opened.keyboard.press("Escape")
    opened.wait_for_selector("#overview:not([hidden])")
    assert opened.evaluate("document.activeElement.querySelector('.id')?.textContent") == rows(opened)[2]


@pytest.mark.parametrize("opened", [PHONE], indirect=True)
@pytest.mark.parametrize("place", ["", "#F1", "#coverage"])
def test_a_phone_scrolls_in_one_direction(opened, place):
    opened.goto(f"{opened.url}{place}")
    opened.wait_for_timeout(200)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 375


@pytest.mark.parametrize("opened", [{"color_scheme": "dark"}], indirect=True)
def test_dark_follows_the_system_and_the_reader(opened):
    paper = "getComputedStyle(document.body).backgroundColor"
    assert opened.evaluate(paper) == "rgb(13, 17, 23)"
    opened.select_option("#theme", "light")
    assert opened.evaluate(paper) == "rgb(255, 255, 255)"
    opened.reload()
    assert opened.evaluate(paper) == "rgb(255, 255, 255)", "the choice is kept"


def test_paper_shows_all_of_a_finding_and_no_buttons(opened):
    opened.goto(f"{opened.url}#F1")
    opened.wait_for_selector("#page h1")
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.emulate_media(media="print")
    assert opened.evaluate("[...document.querySelectorAll('#page details')].every((part) => part.open)")
    assert opened.is_hidden("#back") and opened.is_hidden(".copy") and opened.is_hidden("#theme")


CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8").partition("\n")[2]


@pytest.mark.parametrize("opened", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True)
@pytest.mark.parametrize("place", ["", "#F1"])
def test_text_has_the_contrast_that_wcag_asks_for(opened, place):
    opened.goto(f"{opened.url}{place}")
    opened.wait_for_timeout(300)
    assert opened.evaluate(CONTRAST) == []


UNNAMED = """() => [...document.querySelectorAll("select, input, button, a[href], [role=img]")]
  .filter((node) => !(node.textContent.trim() || node.getAttribute("aria-label") || node.labels?.length))
  .map((node) => node.outerHTML)"""


def test_every_control_has_a_name(opened):
    assert opened.evaluate(UNNAMED) == []
    opened.goto(f"{opened.url}#F1")
    opened.wait_for_selector("#page h1")
    assert opened.evaluate(UNNAMED) == []
