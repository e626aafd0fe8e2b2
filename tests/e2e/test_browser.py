"""The pages in a real browser: nothing is fetched, nothing is wider than the screen, tables sort, dark mode is dark."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polytask import Finished, text_maps
from polytask.reports.text_maps import text_page

Open = Callable[..., Any]


@pytest.fixture(params=["study", "run", "text"])
def report(request: pytest.FixtureRequest, study_folder: Path, tiny_run: Finished, tmp_path: Path) -> Path:
    if request.param == "text":
        page = tmp_path / "attention.html"
        text = "A long text about nothing, with many words in it. " * 4
        maps = text_maps(tiny_run.folder, text)
        page.write_text(text_page("run", "opinion", [text], maps), encoding="utf-8")
        return page
    folder: Path = study_folder if request.param == "study" else tiny_run.folder
    return folder / "report.html"


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """open_page(path, ...): a page that has loaded without an error and fetched its own file alone."""
    contexts = []

    def open_it(path: Path, width: int = 1200, **options: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **options))
        page, asked, wrong = contexts[-1].new_page(), [], []
        page.on("request", lambda request: None if request.url.startswith("data:") else asked.append(request.url))
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(path.as_uri(), wait_until="load")
        assert asked == [path.as_uri()]
        assert wrong == []
        return page

    yield open_it
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_wider_than_the_screen(report: Path, open_page: Open, width: int) -> None:
    page = open_page(report, width)
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    assert page.evaluate("innerWidth") == width
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width


def test_dark_mode_is_dark_and_its_text_is_light(report: Path, open_page: Open) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        page = open_page(report, color_scheme=scheme)
        look = "(key) => getComputedStyle(document.body)[key].match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
        text = "getComputedStyle(document.querySelector('svg text')).fill.match(/\\d+/g).map(Number)[0]"
        colours[scheme] = [page.evaluate(look, "backgroundColor"), page.evaluate(look, "color"), page.evaluate(text)]
    assert colours["light"][0] > 700 > 100 > colours["dark"][0]
    assert colours["dark"][1] > 600 > 150 > colours["light"][1]
    assert colours["dark"][2] > 200 > 60 > colours["light"][2]


def test_a_column_sorts_by_click_and_by_keyboard(study_folder: Path, open_page: Open) -> None:
    page = open_page(study_folder / "report.html")
    table = page.locator("#variants table")
    numbers = "(rows) => rows.map((row) => row.cells[1].dataset.sort)"
    header = table.locator("thead th").nth(1)

    def column() -> list[str]:
        found: list[str] = table.locator("tbody tr").evaluate_all(numbers)
        return found

    before = column()
    known = sorted((float(value) for value in before if value), reverse=True)
    assert header.get_attribute("aria-sort") == "none"
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert [float(value) for value in column()[:-1]] == known != [float(value) for value in before[:-1]]
    header.locator("button").press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert [float(value) for value in column()[:-1]] == known[::-1]
    assert column()[-1] == ""  # the variant that failed stays last
    assert table.locator("[aria-sort=ascending], [aria-sort=descending]").count() == 1


def test_every_column_of_the_main_table_sorts(study_folder: Path, open_page: Open) -> None:
    headers = open_page(study_folder / "report.html").locator("#variants thead th")
    assert headers.count() == 1 + 5 + 6
    for header in headers.all():
        header.locator("button").click()
        assert header.get_attribute("aria-sort") in ("ascending", "descending")


def test_names_sort_by_their_numbers(study_folder: Path, open_page: Open) -> None:
    page = open_page(study_folder / "report.html")
    button, names = page.locator("#variants thead button").first, page.locator("#variants tbody th")
    button.click()
    assert [name.split("-")[1] for name in names.all_inner_texts()] == [str(number) for number in range(14)]
    button.click()
    assert names.first.inner_text().startswith("variant-13-")


def test_links_lead_to_the_reports_of_the_runs(study_folder: Path, open_page: Open) -> None:
    page = open_page(study_folder / "report.html")
    links = page.locator("#cells a").evaluate_all("(links) => links.map((link) => link.getAttribute('href'))")
    assert len(links) == 26
    assert all((study_folder / target).is_file() for target in links)
    page.locator("#cells a").first.click()
    page.wait_for_url((study_folder / "cells" / "0-0" / "report.html").as_uri())


def test_the_page_is_complete_without_its_script(study_folder: Path, open_page: Open) -> None:
    page = open_page(study_folder / "report.html", java_script_enabled=False)
    assert page.locator("#variants tbody tr").count() == 14
    assert page.locator("#variants thead th").nth(1).inner_text().split() == ["topic", "accuracy"]
    assert page.locator("button").count() == 0
    assert not page.locator(".hint").first.is_visible()


def test_a_script_in_a_name_or_error_would_not_run(study_folder: Path, open_page: Open) -> None:
    page = open_page(study_folder / "report.html")
    blocked = """() => new Promise((found) => {
      document.addEventListener("securitypolicyviolation", (event) => found(event.violatedDirective));
      const script = document.createElement("script");
      script.textContent = "window.harm = true";
      document.body.append(script);
    })"""
    assert page.evaluate(blocked) == "script-src-elem"
    assert page.evaluate("window.harm") is None
