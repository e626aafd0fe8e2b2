"""The page / in a real browser: every feature, hostile names and texts, keyboard, phone, dark mode."""

import csv
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from polytask import ServingLimits, train
from polytask.serving.page import FILES, HEADERS

Open = Callable[..., Any]
Running = Any  # of conftest.py
SCRIPT = "<img src=x onerror=harm()>"
HEBREW = "\u05e9\u05dc\u05d5\u05dd"
CLASSES = [SCRIPT, "\"quoted' & <b>bold</b>", f"\u202e{HEBREW}", "😀 happy", "long " * 40 + "x" * 150, "__proto__"]
TEXT = f"The 😀 battery {SCRIPT} died; \"don't\" {HEBREW} buy 'it'."
HTML = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://")
"""What the scripts of the page must not have."""


# --- a server and a browser -------------------------------------------------------------------------------------------
PAIR = ["first", "second"]
TASKS: dict[str, dict[str, Any]] = {
    "opinion": {"kind": "classes", "text": "first", "label": "mood"},
    "feeling": {"kind": "classes", "text": "first", "label": "feeling", "classes": CLASSES},
    "entities": {"kind": "tokens", "text": "words", "label": "tags"},
    "topics": {"kind": "multilabel", "text": "first", "label": "topics"},
    "size": {"kind": "score", "text": "first", "label": "number"},
    "question": {"kind": "yes_no", "text": PAIR, "label": "same"},
    "similarity": {"kind": "score", "text": PAIR, "label": "stars", "range": [0, 5]},
    "articles": {"kind": "match", "text": PAIR},
    "evidence": {"kind": "yes_no", "text": [*PAIR, "third"], "label": "same"},
    "reply": {"kind": "choice", "text": "first", "options": "replies", "label": "best"},
}


def row(i: int) -> dict[str, Any]:
    """A row with the columns of all tasks."""
    return {
        "first": f"is number {i} good",
        "second": f"what about {i * 7 % 24}",
        "third": f"the answer is {i}",
        "words": ["number", str(i), "lives", "here"],
        "tags": ["O", "B-<i>number</i>", "O", f"B-{HEBREW}"],
        "mood": ("good", "bad", "mixed", "neutral", "odd")[i % 5],
        "feeling": CLASSES[i % 6],
        "topics": "|".join([SCRIPT, "even", "third"][: 1 + i % 3]),
        "number": 10.0 * i,
        "same": i % 2,
        "stars": i % 6,
        "replies": ["yes", SCRIPT, f"maybe {i}"][: 2 + i % 2],
        "best": i % 2,
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of all kinds of tasks; classes, tags, options and the run itself have hostile names."""
    folder = tmp_path_factory.mktemp("page")
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row(i)) + "\n" for i in range(24)), encoding="utf-8")
    recipe = {
        "name": "page",
        "encoder": {"layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "positions": 64},
        "max_length": 64,
        "tasks": {name: {"train": str(file), "dev": str(file), **task} for name, task in TASKS.items()},
        "optimizer": {"name": "adamw", "lr": 3e-3},
        "train": {"epochs": 1, "steps_per_epoch": 10, "batch_size": 8, "precision": "float32", "device": "cpu"},
    }
    return train(recipe, folder / SCRIPT).folder


@pytest.fixture(scope="module")
def server(run: Path, start_server: Callable[..., AbstractContextManager[Running]]) -> Iterator[Running]:
    with start_server(run, ServingLimits(max_inputs=40, max_characters=2000, max_body_bytes=20_000)) as running:
        running.service.examples_of = run
        yield running


@pytest.fixture
def open_page(browser: Any, server: Running) -> Iterator[Open]:
    """open_page(...): the page. At the end, it must have asked its own server only, without an error in its console."""
    contexts, wrong = [], list[str]()

    def open_it(width: int = 1200, refused: tuple[int, ...] = (), own: Running = server, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, accept_downloads=True, **options)
        context.set_default_timeout(10_000)
        context.add_init_script(
            "window.harm = () => console.error('a script ran');"
            "document.addEventListener('securitypolicyviolation', (e) => console.error(e.violatedDirective));"
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: None if "Failed to load resource" in m.text else wrong.append(m.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda r: None if r.url.startswith((own.address, "blob:")) else wrong.append(r.url))
        page.on("response", lambda r: wrong.append(r.url) if r.status >= 400 and r.status not in refused else None)
        page.goto(own.address)
        page.wait_for_selector("#app:not([hidden]), #key-form:not([hidden])")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert wrong == []


def ask(page: Any, task: str, *texts: str) -> Any:
    """Fills in the fields and waits for the answers."""
    page.get_by_label("Task").select_option(task)
    for index, text in enumerate(texts):
        page.locator(f"#text-{index}").fill(text)
    page.get_by_role("button", name="Predict", exact=True).click()
    page.wait_for_selector("#answers:not([aria-busy]) > :not(.empty)")
    return page.locator("#answers")


# --- one input --------------------------------------------------------------------------------------------------------
def test_the_files_have_a_strict_policy(server: Running) -> None:
    for path in FILES:
        response = server.client.get(path)
        assert response.status_code == 200
        assert HEADERS.items() <= dict(response.headers).items()
        assert not HTML.search(response.text.replace("http://www.w3.org/2000/svg", ""))
    assert "default-src 'none'" in HEADERS["content-security-policy"]
    assert "unsafe" not in HEADERS["content-security-policy"]
    page = server.client.get("/").text
    assert not re.search(r"<style|style=|<script[^>]*>[^<]|\son\w+=", page)
    folder = Path(__file__).parents[2] / "src" / "polytask" / "serving" / "page"
    assert {file.name for file in folder.iterdir()} == set(FILES.values())


def test_probabilities_as_bars(open_page: Open, server: Running) -> None:
    page = open_page()
    answers = ask(page, "opinion", "Not bad at all.")
    body = {"inputs": ["Not bad at all."], "tasks": "opinion"}
    answer = server.post("/predict", body).json()["results"][0]["predictions"]["opinion"]
    shares = sorted(answer["probabilities"].items(), key=lambda one: -one[1])
    assert answers.locator(".bars .name").all_inner_texts() == [name for name, _ in shares]
    assert answers.locator(".bars .number").all_inner_texts() == [f"{100 * share:.1f} %" for _, share in shares]
    assert answers.locator(".label").inner_text() == answer["label"] == answers.locator(".chosen .name").inner_text()
    widths = answers.locator(".fill").evaluate_all("(all) => all.map((one) => parseFloat(one.style.width))")
    assert widths == pytest.approx([100 * share for _, share in shares], abs=0.01)
    assert page.get_by_role("status").first.inner_text().startswith(f"opinion: {answer['label']}, ")


def test_scores_on_a_scale_and_pairs(open_page: Open, server: Running) -> None:
    page = open_page()
    answers = ask(page, "similarity", "A man is cycling.", "Someone rides.")
    pairs = {"pairs": [["A man is cycling.", "Someone rides."]], "task": "similarity"}
    score = server.post("/similarity", pairs).json()["results"][0]["score"]
    scale = answers.get_by_role("img")
    assert re.fullmatch(r"[\d.]+ on a scale from 0 to 5", scale.get_attribute("aria-label"))
    place = scale.locator(".dot").evaluate("(dot) => parseFloat(dot.style.left)")
    assert place == pytest.approx(100 * score / 5, abs=0.01)
    assert "no range" in ask(page, "size", "a").inner_text()
    assert "scale from -1 to 1" in ask(page, "articles", "a", "b").get_by_role("img").get_attribute("aria-label")
    assert ask(page, "question", "a?", "b?").locator(".bars li").count() == 2
    assert page.locator("#texts label").all_inner_texts() == ["first", "second"]


def test_tags_are_marked_in_the_text(open_page: Open, server: Running) -> None:
    text = "😀😀 Ada Lovelace, London " + SCRIPT
    answer = server.post("/predict", {"inputs": text, "tasks": "entities"}).json()["results"][0]
    spans = answer["predictions"]["entities"]["spans"]
    page = open_page()
    shown = ask(page, "entities", text).locator("p.text")
    assert spans
    marks = shown.locator("mark > bdi").all_inner_texts()
    assert marks == [text[span["start"] : span["end"]] for span in spans]
    assert shown.locator("mark small").all_inner_texts() == [span["label"] for span in spans]
    shown.locator("small").evaluate_all("(all) => all.forEach((one) => one.remove())")
    assert "".join(shown.inner_text().split()) == "".join(text.split())


def test_all_tasks_at_once(open_page: Open) -> None:
    page = open_page()
    answers = ask(page, "", "Not bad.")
    assert answers.locator("h2").all_inner_texts() == ["opinion", "feeling", "entities", "topics", "size"]
    assert page.get_by_label("text 2 (optional)").is_visible()
    answers = ask(page, "", "Not bad.", "Not good.")
    page.wait_for_function("document.querySelector('#answers h2').textContent == 'question'")
    assert answers.locator("h2").all_inner_texts() == ["question", "similarity", "articles"]
    answers = ask(page, "", "Not bad.", "Not good.", "So?")
    page.wait_for_function("document.querySelector('#answers h2').textContent == 'evidence'")


def test_options_several_classes_and_three_texts(open_page: Open, server: Running) -> None:
    page = open_page()
    answers = ask(page, "reply", "Is it open?", f"Yes.\n\n {SCRIPT} \nMaybe tomorrow.")
    body = {"inputs": {"text": "Is it open?", "options": ["Yes.", SCRIPT, "Maybe tomorrow."]}, "tasks": "reply"}
    answer = server.post("/predict", body).json()["results"][0]["predictions"]["reply"]
    assert answers.locator(".label").inner_text() == answer["label"]
    assert set(answers.locator(".bars .name").all_inner_texts()) == {"Yes.", SCRIPT, "Maybe tomorrow."}
    answers.get_by_role("button", name="What moved it?").click()
    answers.locator(".effects").wait_for()
    assert answers.locator(".why .text").all_inner_texts() == ["Is it open?", "Yes.", SCRIPT, "Maybe tomorrow."]
    answers.get_by_label("Method").select_option("occlusion")
    answers.locator(".why [aria-live]:not([aria-busy]) .effects").wait_for()
    topics = server.post("/predict", {"inputs": TEXT, "tasks": "topics"}).json()["results"][0]["predictions"]["topics"]
    assert ask(page, "topics", TEXT).locator(".chosen .name").count() == len(topics["label"])
    assert ask(page, "evidence", "a", "b", "c").locator(".bars li").count() == 2
    assert page.locator("#texts label").all_inner_texts() == ["first", "second", "third"]


def test_truncation_and_errors_are_shown(open_page: Open) -> None:
    page = open_page(refused=(413, 422))
    assert "202 tokens" in ask(page, "opinion", "good " * 200).inner_text()
    assert "2,001 characters; at most 2,000" in ask(page, "opinion", "x" * 2001).locator(".error").inner_text()
    assert page.locator("#status").inner_text().startswith("Error: ")
    assert "empty" in ask(page, "similarity", "a", " ").locator(".error").inner_text()
    page.route("**/predict", lambda route: route.abort())
    page.on("requestfailed", lambda request: None)
    page.get_by_role("button", name="Predict", exact=True).click()
    page.get_by_text("cannot be reached").first.wait_for()


def test_examples(open_page: Open) -> None:
    page = open_page()
    page.get_by_label("Task").select_option("similarity")
    example = page.get_by_role("region", name="Examples").get_by_role("button").first
    first, second = example.inner_text().split(" · ")
    example.click()
    page.wait_for_selector("#answers .scale")
    assert [page.locator(f"#text-{i}").input_value() for i in (0, 1)] == [first, second]


def test_the_curl_command(open_page: Open, server: Running) -> None:
    page = open_page()
    context = page.context
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "feeling", TEXT)
    page.get_by_text("This request with curl").click()
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("Copied.").wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    assert command == page.locator("#curl").inner_text()
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:2] == ["curl", f"{server.address}/predict"]
    headers = dict([words[words.index("-H") + 1].split(": ")])
    response = server.client.post("/predict", content=words[words.index("-d") + 1].encode(), headers=headers)
    found = response.json()["results"][0]["predictions"]["feeling"]["label"]
    assert page.locator("#answers .label").inner_text() == found.strip()


# --- explanations -----------------------------------------------------------------------------------------------------
def test_what_moved_the_answer(open_page: Open, server: Running) -> None:
    page = open_page()
    answers = ask(page, "opinion", TEXT)
    button = answers.get_by_role("button", name="What moved it?")
    for method in ("integrated_gradients", "occlusion"):
        with page.expect_response("**/explain"):
            button.click() if method == "integrated_gradients" else answers.get_by_label("Method").select_option(method)
        assert button.get_attribute("aria-expanded") == "true"
        page.wait_for_selector(".why [aria-live]:not([aria-busy])")
        label = answers.get_by_label("Answer").input_value()
        body = {"input": TEXT, "task": "opinion", "method": method, "label": label}
        words = server.post("/explain", body).json()["words"]
        largest = max(words, key=lambda word: abs(word["value"]))
        strength = "one.style.getPropertyValue('--strength')"
        strongest = answers.locator(".why .text .effect").evaluate_all(
            f"(all) => all.filter((one) => {strength} == '1.00').map((one) => one.textContent)"
        )
        assert largest["word"] in strongest
        assert answers.locator(".effects tbody tr").count() == 5
        assert answers.locator(".why .text").inner_text() == TEXT
    with page.expect_response("**/explain"):
        answers.get_by_label("Answer").select_option("mixed")
    answers.locator(".why bdi", has_text="mixed").first.wait_for()


def test_the_tag_of_a_word_is_explained(open_page: Open) -> None:
    page = open_page()
    answers = ask(page, "entities", "Ada lived in London.")
    answers.get_by_role("button", name="What moved it?").click()
    answers.locator(".effects").wait_for()
    with page.expect_response("**/explain") as sent:
        answers.get_by_label("Tag of").select_option("3")
    assert sent.value.json()["texts"] == ["Ada lived in London."]
    assert sent.value.request.post_data_json["word"] == 3


# --- hostile names and texts ------------------------------------------------------------------------------------------
def test_names_and_texts_are_never_html(open_page: Open) -> None:
    page = open_page()
    assert page.locator("#run").inner_text() == SCRIPT
    answers = ask(page, "feeling", TEXT)
    names = answers.locator(".bars .name bdi").evaluate_all("(all) => all.map((one) => one.textContent)")
    assert sorted(names) == sorted(CLASSES)
    answers.get_by_role("button", name="What moved it?").click()
    answers.locator(".effects").wait_for()
    choices = answers.get_by_label("Answer").locator("option").evaluate_all("(all) => all.map((one) => one.value)")
    assert sorted(choices) == sorted(CLASSES)
    ask(page, "", TEXT)
    page.get_by_role("tab", name="Many rows").click()
    page.get_by_label("Rows", exact=True).fill(f"{TEXT}\n{SCRIPT}")
    page.get_by_role("button", name="Predict rows").click()
    page.locator("#table").wait_for()
    assert page.locator("#table td").first.inner_text() == TEXT
    assert page.locator("img, b, script:not([src]), [onerror]").count() == 0


# --- many rows --------------------------------------------------------------------------------------------------------
def rows_of(page: Any, safe: bool) -> list[list[str]]:
    """The rows of the CSV file that the page gives back."""
    page.get_by_label("For spreadsheets").set_checked(safe)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    content = Path(download.value.path()).read_bytes().decode("utf-8")
    assert content.startswith("\ufeff") == safe
    return list(csv.reader(io.StringIO(content.removeprefix("\ufeff"), newline="")))


def test_pasted_lines_in_several_requests(open_page: Open, server: Running) -> None:
    page = open_page(refused=(413, 422))
    page.get_by_label("Task").select_option("opinion")
    page.get_by_role("tab", name="Many rows").click()
    lines = [f"text number {i}" for i in range(100)]
    lines[7], lines[50] = "x" * 2001, "=1+1"
    sent: list[int] = []
    page.on("request", lambda r: sent.append(len(r.post_data_json["inputs"])) if r.url.endswith("/predict") else None)
    page.get_by_label("Rows", exact=True).fill("\n".join(lines) + "\n\n")
    page.get_by_role("button", name="Predict rows").click()
    page.get_by_text("100 rows, 1 with an error").first.wait_for()
    assert sent == [40, 40, 20]
    assert "2,001 characters" in page.locator("#table tr.failed td").last.inner_text()
    header, *rows = rows_of(page, safe=False)
    assert header == ["text", "predicted_opinion", "probability_opinion", "error"]
    assert [row[0] for row in rows] == lines
    answers = server.post("/predict", {"inputs": lines[:5], "tasks": "opinion"}).json()["results"]
    assert [row[1] for row in rows[:5]] == [one["predictions"]["opinion"]["label"] for one in answers]
    assert [i for i, row in enumerate(rows) if row[3]] == [7]
    assert rows_of(page, safe=True)[51][0] == "'=1+1"


def test_a_csv_file_comes_back_with_its_columns(open_page: Open, tmp_path: Path) -> None:
    table = [
        ["id", "second", "first", "note"],
        ["1", 'say "hi", you', "two\nlines", "-5"],
        ["2", f"{HEBREW}; 😀", SCRIPT, '=HYPERLINK("x")'],
        ["3", "", "no second text", "@a"],
    ]
    page = open_page(refused=(422,))
    page.get_by_label("Task").select_option("question")
    for delimiter in (",", ";", "\t"):
        with (tmp_path / "pairs.csv").open("w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file, delimiter=delimiter).writerows(table)
        page.get_by_role("tab", name="Many rows").click()
        page.get_by_label("Choose a CSV file").set_input_files(tmp_path / "pairs.csv")
        first, second = (page.locator(f"#column-{i} option:checked") for i in (0, 1))
        assert (first.inner_text(), second.inner_text()) == ("first", "second")
        page.get_by_role("button", name="Predict rows").click()
        page.get_by_text("3 rows, 1 with an error").first.wait_for()
        found = rows_of(page, safe=False)
        assert [row[:4] for row in found] == table
        assert found[0][4:] == ["predicted_question", "probability_question", "error"]
        assert [bool(row[6]) for row in found[1:]] == [False, False, True]
        assert [row[3] for row in rows_of(page, safe=True)[1:]] == ["-5", '\'=HYPERLINK("x")', "'@a"]


def test_a_dropped_file_all_tasks_and_a_busy_server(open_page: Open) -> None:
    page = open_page(refused=(429,))
    page.get_by_label("Task").select_option("")
    drop = """() => {
      const data = new DataTransfer();
      data.items.add(new File(["words,more\\nfine,\\nbad,worse\\n"], "rows.csv", {type: "text/csv"}));
      document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
    }"""
    page.evaluate(drop)
    page.locator("#column-0").wait_for()
    refusals = [429]

    def busy(route: Any) -> None:
        if refusals:
            route.fulfill(status=refusals.pop(), json={"error": "try again later", "error_type": "queue_full"})
        else:
            route.continue_()

    page.route("**/predict", busy)
    page.get_by_role("button", name="Predict rows").click()
    page.get_by_text("2 rows, 0 with an error").first.wait_for()
    header = rows_of(page, safe=False)[0]
    assert header[:2] == ["words", "more"]
    assert {"predicted_opinion", "predicted_entities", "predicted_feeling"} <= set(header)
    assert not {"predicted_question", "error"} & set(header)
    page.locator("#column-1").select_option(label="more")
    page.get_by_role("button", name="Predict rows").click()
    page.locator("#table th", has_text="predicted_question").wait_for()


def test_stopping_and_long_tables(open_page: Open) -> None:
    page = open_page()
    page.get_by_label("Task").select_option("opinion")
    page.get_by_role("tab", name="Many rows").click()
    page.get_by_label("Rows", exact=True).fill("\n".join(f"row {i}" for i in range(230)))
    page.get_by_role("button", name="Predict rows").click()
    page.get_by_text("230 rows, 0 with an error").first.wait_for()
    assert page.locator("#table tbody tr").count() == 200
    assert page.locator("#rest").inner_text() == "30 more rows are in the CSV file."
    assert len(rows_of(page, safe=False)) == 231
    asked: list[Any] = []

    def answer_the_first(route: Any) -> None:
        asked.append(route)
        if len(asked) == 1:
            route.continue_()

    page.route("**/predict", answer_the_first)
    page.get_by_role("button", name="Predict rows").click()
    page.get_by_text("40 of 230").wait_for()
    page.get_by_label("Task").select_option("feeling")  # rows that are under way keep their task
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped after 40 rows").first.wait_for()
    assert rows_of(page, safe=False)[0] == ["text", "predicted_opinion", "probability_opinion"]
    assert page.locator("#table tbody tr").count() == 40


# --- the key ----------------------------------------------------------------------------------------------------------
def test_the_page_asks_for_the_key(open_page: Open, run: Path, start_server: Any) -> None:
    with start_server(run, api_key="correct-horse") as server:
        page = open_page(own=server, refused=(401,))
        assert not page.locator("#app").is_visible()
        assert page.evaluate("document.activeElement.id") == "key"
        page.keyboard.type("wrong-horse")
        page.keyboard.press("Enter")
        page.get_by_text("does not accept this key").wait_for()
        page.get_by_label("API key").fill("correct-horse")
        page.get_by_role("button", name="Use key").click()
        assert ask(page, "opinion", "fine").locator(".label").inner_text()
        assert not page.get_by_role("link", name="API").is_visible()  # a link has no key
        page.get_by_text("This request with curl").click()
        assert "correct-horse" not in page.content()
        assert "$POLYTASK_API_KEY" in page.locator("#curl").inner_text()
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.reload()
        page.wait_for_selector("#app:not([hidden])")
        page.close()


# --- keyboard, screen readers, phone, dark mode -----------------------------------------------------------------------
def test_everything_works_with_the_keyboard_alone(open_page: Open) -> None:
    page = open_page()

    def focus(name: str) -> None:
        for _ in range(40):
            if page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()") == name:
                assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"{name} cannot be reached with the Tab key")

    focus("task")
    page.keyboard.press("o")
    assert page.locator("#task").input_value() == "opinion"
    focus("text-0")
    page.keyboard.type("Not bad.")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#answers .label")
    focus("What moved it?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".effects")
    page.locator("#task").focus()
    focus("tab-one")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-many"
    assert page.get_by_role("tab", name="Many rows").get_attribute("aria-selected") == "true"
    focus("rows")
    page.keyboard.type("one\ntwo")
    focus("file")
    focus("Predict rows")
    page.keyboard.press("Enter")
    page.get_by_text("2 rows, 0 with an error").first.wait_for()


def test_screen_readers(open_page: Open) -> None:
    page = open_page()
    answers = ask(page, "similarity", "a", "b")
    answers.get_by_role("button", name="What moved it?").click()
    answers.locator(".effects").wait_for()
    snapshot = page.locator("main").aria_snapshot()
    for part in (
        'combobox "Task"',
        'tab "One input" [selected]',
        'tabpanel "One input"',
        'textbox "first"',
        'region "Examples"',
        'region "Answers"',
        'heading "similarity" [level=2]',
        "on a scale from 0 to 5",
        'combobox "Method"',
        'columnheader "Effect on the score"',
        'button "Predict"',
    ):
        assert part in snapshot, part
    page.get_by_role("tab", name="Many rows").click()
    assert 'textbox "Rows"' in page.locator("main").aria_snapshot()
    nameless = """() => [...document.querySelectorAll("button, select, textarea, input, progress, [role=region]")]
      .filter((one) => !one.labels?.length && !one.ariaLabel && !one.getAttribute("aria-labelledby") &&
        !(one.tagName == "BUTTON" && one.textContent.trim()) && !one.closest(".why, .scroll")).map((one) => one.id)"""
    assert page.evaluate(nameless) == []
    assert page.evaluate("document.documentElement.lang") == "en"
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))


CONTRASTS = """() => {
  const channels = (color) => (color.match(/[\\d.]+/g) || []).map(Number);
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const backdrop = (element) => {  // the colors behind the element, painted over each other
    const chain = [];
    for (let one = element; one; one = one.parentElement) chain.unshift(getComputedStyle(one).backgroundColor);
    canvas.clearRect(0, 0, 1, 1);
    for (const color of ["white", ...chain]) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !element.checkVisibility({ visibilityProperty: true })) continue;
    const both = [light(channels(getComputedStyle(element).color)), light(backdrop(element))];
    const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    found.push([contrast, walk.currentNode.textContent.trim().slice(0, 30)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1200])
def test_nothing_is_wider_than_the_screen_and_text_can_be_read(open_page: Open, scheme: str, width: int) -> None:
    page = open_page(width, color_scheme=scheme, refused=(422,))
    page.get_by_text("This request with curl").click()

    def check() -> None:
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 10
        assert min(contrasts)[0] >= 4.5, min(contrasts)

    check()
    for task, texts in (("feeling", (TEXT + "x" * 300,)), ("entities", ("Ada lived in London. " * 5,))):
        answers = ask(page, task, *texts)
        answers.get_by_role("button", name="What moved it?").click()
        answers.locator(".effects").wait_for()
        check()
    ask(page, "", "fine", "x" * 500)
    check()
    page.get_by_role("tab", name="Many rows").click()
    page.get_by_label("Rows", exact=True).fill(f"{'long' * 100}\t{TEXT}\n \ta")
    page.get_by_role("button", name="Predict rows").click()
    page.locator("#table").wait_for()
    check()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert background > 200 if scheme == "light" else background < 60


def test_motion_can_be_reduced(open_page: Open) -> None:
    for preference, seconds in (("reduce", "0s"), ("no-preference", "0.2s")):
        page = open_page(reduced_motion=preference)
        ask(page, "opinion", "fine")
        durations = page.locator(".fill").first.evaluate("(one) => getComputedStyle(one).transitionDuration")
        assert set(durations.split(", ")) == {seconds}
