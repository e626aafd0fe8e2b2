"""CoNLL files: sentences as rows, any column, comments, and lines that cannot be used."""

from pathlib import Path
from typing import Any

import pytest

from polytask.tasks.reading import open_source
from polytask.tasks.sources.source import BrokenRow
from polytask.types import UserError

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP B-ORG
rejects VBZ I-VP O

# # O O
Peter NNP I-NP B-PER
# a comment of a sentence
Blackburn NNP I-NP I-PER


"""
CONLLU = """# newdoc id = 1
# text = Vámonos al mar
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
2.1\tnada\t_\t_\t_\t_\t_\t_\t_\t_
3\tal mar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_
"""


def opened(folder: Path, name: str, content: str, **options: Any) -> Any:
    path = folder / name
    path.write_text(content, encoding="utf-8", newline="")
    return open_source(str(path), **options)


def test_a_sentence_is_a_row_and_any_column_can_be_read(tmp_path: Path) -> None:
    source = opened(tmp_path, "a.conll", CONLL)
    assert source.columns == ("0", "1", "2", "3")
    assert list(source.rows(["0", "3"])) == [
        (3, [["EU", "rejects"], ["B-ORG", "O"]]),
        (6, [["#", "Peter", "Blackburn"], ["O", "B-PER", "I-PER"]]),
    ]
    assert next(source.rows(["1"]))[1] == [["NNP", "VBZ"]]
    assert len(source.fingerprint()) == 64


def test_windows_line_ends_and_other_extensions(tmp_path: Path) -> None:
    source = opened(tmp_path, "a.txt", "a\tX\r\nb\tY\r\n\r\nc\tX", format="conll")
    assert list(source.rows(["0", "1"])) == [(1, [["a", "b"], ["X", "Y"]]), (4, [["c"], ["X"]])]


def test_columns_of_universal_dependencies_have_names(tmp_path: Path) -> None:
    source = opened(tmp_path, "a.conllu", CONLLU)
    assert list(source.rows(["FORM", "UPOS"])) == [(4, [["Vamos", "nos", "al mar"], ["VERB", "PRON", "NOUN"]])]
    assert list(source.rows(["1", "3"])) == list(source.rows(["FORM", "UPOS"]))


def test_a_comment_can_name_the_columns(tmp_path: Path) -> None:
    source = opened(tmp_path, "a.conll", "# global.columns = FORM NER\nEU B-ORG\n")
    assert list(source.rows(["NER"])) == [(2, [["B-ORG"]])]


def test_comments_are_left_out_although_they_have_as_many_fields_as_words(tmp_path: Path) -> None:
    spaces = opened(tmp_path, "a.conll", "# sent_id = 1\nEU NNP I-NP B-ORG\n# # O O\n#a b c d\n")
    assert list(spaces.rows(["0"])) == [(2, [["EU", "#", "#a"]])]
    five = opened(tmp_path, "b.conll", "# newdoc id = x\nEU NNP _ I-NP B-ORG\n")
    assert list(five.rows(["4"])) == [(2, [["B-ORG"]])]
    tabs = opened(tmp_path, "c.conll", "# text = the EU\n1\tthe\tO\t-\t-\n2\t#\tB\t-\t-\n# of EU # 2\n")
    assert list(tabs.rows(["1"])) == [(2, [["the", "#"]])]


def test_only_tabs_and_plain_spaces_separate_columns(tmp_path: Path) -> None:
    source = opened(tmp_path, "a.conll", "10\u00a0000  NUM\neuros\u3000 NOUN\n")
    assert list(source.rows(["0", "1"])) == [(1, [["10\u00a0000", "euros\u3000"], ["NUM", "NOUN"]])]


def test_a_line_with_another_number_of_columns_breaks_its_sentence(tmp_path: Path) -> None:
    source = opened(tmp_path, "a.conll", "a X\nb\nc Y Z\n\nd X\n")
    broken, row = list(source.rows(["0", "1"]))
    assert isinstance(broken, BrokenRow)
    assert str(broken).endswith("a.conll, line 2: 'b': 1 column(s), expected 2 as in the first line")
    assert row == (5, [["d"], ["X"]])


def test_a_file_without_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the file has no words"):
        _ = opened(tmp_path, "a.conll", "\n# nothing\n\n").columns
