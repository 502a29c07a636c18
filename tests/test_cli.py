import re
import subprocess
import sys

import pytest


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fedtailor", *words], capture_output=True, text=True, check=False)


def test_compare_prints_one_table() -> None:
    done = run("compare", "local", "fedavg", "fedsim", "rounds=2", "budget=2", "data.clients=12", "cohort=4")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "digits: 2 rounds of 4 clients, seed 0" in done.stdout
    for name in ("local", "fedavg", "fedavg [+] fine-tuning", "fedsim"):
        assert re.search(rf"^ {name} +local +\d+\.\d ±", done.stdout, re.MULTILINE), name
    assert len(re.findall(r"^ +new +\d+\.\d ±", done.stdout, re.MULTILINE)) == 4


def test_help_has_examples() -> None:
    done = run("compare", "--help")
    assert done.returncode == 0
    assert "fedtailor compare local fedavg fedsim data=digits rounds=30 seed=1" in done.stdout


WRONG = [
    (("fedsm",), "There is no method 'fedsm'; did you mean fedsim?"),
    (("lrr=1",), "There is no key 'lrr'; did you mean lr?"),
    (("rounds=x",), "rounds: "),
    (("rounds=0",), "rounds: "),
    (("lr=-1",), "local: lr must be positive, got -1."),
    (("data=digit",), "data: no dataset is called 'digit'; did you mean 'digits'?"),
    (("data.people=3",), "digits: there is no option 'people'; "),
    (("fedavg", "fedsim.lam=1"), "'fedsim.lam=1' is for the method fedsim, which is not among fedavg."),
    (("fedsim.lamm=1",), "fedsim has no hyper-parameter 'lamm'; did you mean lam?"),
    (("fedavg", "cohort=99"), "fedavg: 99 clients a round were asked for, but data set 'digits' has 21 to train on; "),
    (
        ("fedsim", "data.server=0"),
        "fedsim: the server's work needs data, but data set 'digits' gives the server none; ",
    ),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[" ".join(row[0]) for row in WRONG])
def test_wrong_words_end_in_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    from fedtailor.errors import InputError
    from fedtailor.run.compare import compare
    from fedtailor.run.spec import comparison

    with pytest.raises(InputError) as caught:
        compare(comparison(list(words)), lambda name: None, lambda done: None)
    assert str(caught.value).startswith(sentence)


def test_a_wrong_word_exits_with_2_and_no_traceback() -> None:
    done = run("compare", "fedsm")
    assert done.returncode == 2
    assert done.stderr == "fedtailor: There is no method 'fedsm'; did you mean fedsim?\n"
    assert done.stdout == ""
