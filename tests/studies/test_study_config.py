"""study.toml: what is read, and what is said of a wrong one."""

from pathlib import Path

import pytest

from fedtailor.errors import InputError
from fedtailor.studies import locate
from fedtailor.studies.config import format_overrides, read_study
from small_study import COMPARISON, HEAD, PART, small, written


def test_a_study_is_read(tmp_path: Path) -> None:
    study = small(tmp_path, 'headline = "unseen before worst tenth"\nquick = { rounds = 2 }\n')
    (part,) = study.parts
    assert (study.name, study.title, part.name) == ("small", "Small", "one")
    assert (part.column, part.statistic) == ("unseen before", "worst tenth")
    assert study.get_comparison_path(part) == study.folder / "one.toml"
    assert part.tables == ("accuracy",)


WRONG = {
    "titel": ("titel = 'x'\n" + HEAD + PART, "there is no key 'titel'; did you mean title?"),
    "no title": ("question = 'x'\n" + PART, "title is missing."),
    "no parts": (HEAD + "parts = []\n", "parts: "),
    "part's key": (
        HEAD + PART + "minuts = 3\n",
        "there is no key 'parts.0.minuts'; did you mean minutes?",
    ),
    "name": (HEAD + PART.replace('"one"', '"../one"'), "parts.0.name: "),
    "group": (
        HEAD + PART + 'headline = "all after micro"\n',
        "part one: headline must begin with one of participating before, ",
    ),
    "statistic": (
        HEAD + PART + 'headline = "participating after mean"\n',
        "part one: headline must end with one of micro, ",
    ),
    "table": (HEAD + PART + 'tables = ["speeds"]\n', "parts.0.tables.0: "),
    "sweep": (
        HEAD + PART + 'tables = ["sweep"]\n',
        "part one: to show a sweep, name what varies ([parts.vary]).",
    ),
    "published": (
        HEAD
        + PART
        + 'published = { fedavg = [1.0, 2.0] }\nvary = { key = "lr", values = [0.1] }\n',
        "part one: published.fedavg has 2 numbers for 1 varied values.",
    ),
    "column": (
        HEAD + PART + 'published.fedavg = { "participating afer" = 1.0 }\n',
        "part one: published.fedavg has no column 'participating afer'; did you mean "
        "participating after?",
    ),
    "twice": (HEAD + PART + PART, "parts must have different names, got one, one."),
    "no file": (HEAD + PART.replace('"one"', '"two"'), "part two needs the file '"),
    "not TOML": ("title = ", "cannot be read as TOML: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_gets_one_sentence_that_names_it(case: str, tmp_path: Path) -> None:
    content, sentence = WRONG[case]
    folder = written(tmp_path / "small", content, one=COMPARISON)
    with pytest.raises(InputError) as caught:
        read_study(folder)
    said = str(caught.value)
    assert said.startswith(f"'{folder / 'study.toml'}'")
    assert sentence in said
    assert "\n" not in said


def test_tables_are_words() -> None:
    table = {
        "rounds": 3,
        "data.clients": 4,
        "fedsim": {"lam": 0.5},
        "tune": {"lr": [0.1, 1.0]},
        "data": "digits",
    }
    expected = ["rounds=3", "data.clients=4", "fedsim.lam=0.5", "tune.lr=0.1,1.0", "data=digits"]
    assert format_overrides(table) == expected
    assert format_overrides({"overlap": True, "label": "3"}) == ["overlap=true", 'label="3"']


def test_studies_are_found_here_first_then_in_the_checkout_then_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "checkout" / "src" / "fedtailor"
    monkeypatch.setattr(locate, "PACKAGE_DIR", package)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match=r"^There are no studies: none of the folders 'studies', "):
        locate.load_study("small")
    for where in (package / "_studies", tmp_path / "checkout" / "studies", Path("studies")):
        written(where / "small")
        assert locate.find_studies() == {"small": where / "small"}
    with pytest.raises(InputError, match=r"^There is no study 'smal'; did you mean small\?$"):
        locate.load_study("smal")
    assert (
        locate.load_study("small").folder.resolve()
        == (tmp_path / "here" / "studies" / "small").resolve()
    )
