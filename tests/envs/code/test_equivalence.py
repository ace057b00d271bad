"""Right and wrong answers, from the field's known false positives and false negatives."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.code import symbolic, values
from agentrl.envs.code.equivalence import Rules, equivalent
from agentrl.envs.code.symbolic import Comparer

EQUAL = [
    # numbers in their spellings
    ("1/2", "0.5"), (r"\frac12", "0.5"), (r"\frac{1}{2}", r"\dfrac{1}{2}"), (r"1\frac{1}{2}", "1.5"), ("1 1/2", "3/2"),
    ("1,234", "1234"), (r"10,\!000", "10000"), ("10{,}000", "10000"), (r"\$18.90", "18.9"), ("18.90", r"\$18.90"),
    (r"145^\circ", "145"), (r"145^{\circ}", "145°"), ("80", "80 degrees"), ("50\\%", "50"), ("0.5", "50%"),
    ("50\\%", "0.5"), ("1/3", "0.333333"), ("1/3", "0.3333333333333333"), ("21", "21.0000000000"), (".5", "0.50"),
    ("12", "12."), ("0", "-0"), ("-3/4", r"-\frac{3}{4}"), (r"\frac{-3}{4}", r"-\frac34"), ("−5", "-5"),
    (r"6.02\times10^{23}", "6.02e23"), ("½", "0.5"), ("2250", "$2,250$"), ("7", "+7"),
    ("7", r"\(7\)"), ("7", "$7$."), ("35", "35.00"), ("99999999999999999999", "99999999999999999999"),
    # units
    ("5 cm", "50 mm"), ("5 cm", "5"), ("5", "5 cm"), (r"36\text{ square feet}", "36 ft^2"), ("90 km/h", "25 m/s"),
    ("2 hours", "120 minutes"), ("3 ft", "36 inches"),
    # words and choices
    (r"\text{Evelyn}", "evelyn"), ("Monday", "monday"), (r"\text{(C)}", "C"), ("C", "(C)"), ("C", "C."), ("C", "c"),
    ("C", "(C) 12"), ("B", "The answer is B"), ("B", "option B"),
    # names, lists, sets, tuples, intervals
    (r"x \in [-2,7]", "[-2,7]"), ("x=5", "5"), ("5", "x = 5"), ("1, 2", "2, 1"), ("1,-2", "-2 and 1"),
    (r"\{1,2\}", r"\{2, 1\}"), (r"\{1,2\}", "2, 1"), ("(1,2)", "( 1 , 2 )"), ("(0.5, 3)", r"\left(\frac12,3\right)"),
    ("[0,1)", "[0, 1)"), ("3, 5, 7", "3,5,7"), ("(1, 2), (3, 4)", "(3,4), (1,2)"), ("-7.5", r"-7\frac{1}{2}"),
    ("204_5", "204"), ("204_5", "204_{5}"),
    ("2023-05-01", "2023-05-01"), ("$40", "40 dollars"),
    # spellings of words, dates, signs and sets
    ("New York", "new york"), (r"\text{Mary Ann}", "mary ann"), ("2023-05-01", "2023-5-1"), ("3:30 PM", "3:30 p.m."),
    ("50%", "50 percent"), ("1 000 000", "1000000"), (r"\emptyset", r"\varnothing"), (r"\emptyset", r"\{\}"),
    (r"0.\overline{3}", "1/3"), ("1/3", r"0.\overline{3}"), (r"0.1\overline{6}", "1/6"), ("2 3/4", "2.75"),
    (r"(-\infty,\infty)", r"(-\infty, +\infty)"), (r"[0,\infty)", "[0, infinity)"),
    (r"\mathbb{R}", r"(-\infty,\infty)"),
    # inequalities and the intervals that they are
    ("[2,5]", r"2 \le x \le 5"), (r"-2\le x< 7", "[-2,7)"), ("(3,\\infty)", "x>3"), ("x > 3", "3 < x"),
    ("x<3", "(-\\infty, 3)"),
    (r"7 > x \ge -2", "[-2, 7)"),
    # both signs
    (r"\pm 3", "3, -3"), ("3,-3", "±3"), (r"x = \pm 3", "-3 and 3"),
    # numbers of things, and several unknowns
    ("7", "7 apples"), (r"7\text{ apples}", "7"), ("18", r"18 \text{ ways}"), ("7 apples", "7 Apples"),
    ("(x,y)=(1,2)", "(1,2)"),
]  # fmt: skip

EQUAL_BY_ALGEBRA = [
    (r"2\sqrt{2}", r"\sqrt 8"), (r"2\sqrt{2}", "2*sqrt(2)"), (r"2\sqrt{2}", "2.8284271247461903"), ("p - q", "-q+p"),
    (r"(3,\frac{\pi}{2})", "(3, pi/2)"), ("x^2+2x+1", "(x+1)^2"), ("x^2+2x+1", "(x+1)**2"), ("3x+4y=7", "7=4y+3x"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"), (r"\binom{5}{2}", "10"), ("120", "5!"),
    (r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}", r"\begin{pmatrix}-1/3\\2/3\end{pmatrix}"), ("1000000", r"10^6"),
    ("2", r"\sqrt{4}"), ("2^{100}", "1267650600228229401496703205376"), (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"(-\infty,3)\cup(4,5]", r"(-\infty, 3) \cup (4, 5]"), (r"\pi", "3.141592653589793"), (r"11\sqrt2", r"11\sqrt{2}"),
    ("y = 2x + 3", "y = 3 + 2x"), ("a^2+b^2", "b^2+a^2"), ("x^2y^3", "y^3x^2"),
    (r"1\pm\sqrt{2}", r"1-\sqrt2, 1+\sqrt2"),
    ("2+3i", "3*I + 2"), ("-1", "i^2"), (r"\infty", r"+\infty"), (r"\tbinom{5}{2}", "10"),
    (r"\begin{pmatrix}1\\x\end{pmatrix}", r"\begin{bmatrix}1\\ x\end{bmatrix}"),
    (r"x \ge \frac{1}{2}", r"[0.5, \infty)"),
    (r"\left(\begin{array}{cc}1&2\\3&4\end{array}\right)", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
]  # fmt: skip

DIFFERENT = [
    ("361", "196 and 361"), ("361", "196, 361"), (r"1\frac{1}{2}", "1"), ("1.5", "1"), ("1/3", "0.333"),
    ("1000000", "1000000.5"), ("99999999999999999999", "99999999999999999998"), ("3", "-3"), ("0.1", "0.01"),
    ("2250", "250"), ("12", "1"), ("12", "123"), ("1.5e3", "1500000"), ("50", "0.5"), ("7", ""), ("7", " "),
    ("7", "seven"), ("1/3", "0.33"),
    ("7", r"\boxed{7"), ("5", "5 million"), ("5", "5 or 6"), ("5", "about 5"), ("5 m", "5 s"), ("5 cm", "5 m"),
    (r"36\text{ square feet}", "36 feet"), ("C", "A"), ("C", "B) 12 C"), ("C", "A or C"), ("C", "A cat"),
    ("C", "ABCDE"), ("Monday", "Tuesday"), ("Monday", "Monday or Tuesday"), ("x=5", "y=5"), ("(1,2)", "(2,1)"),
    ("[0,1)", "[0,1]"), ("(0,1)", "[0,1]"), ("1, 2", "1"), ("1, 2", "1, 2, 3"), ("1, 1, 2", "1, 2, 2"),
    (r"\{1,2\}", r"\{1,3\}"), ("1", "1, 1"), ("3.14", "3.14159"), ("07", "70"), ("204_5", "204_6"),
    ("204_5", "54"),
    ("1", "1e400000"), ("2", "print(2)"), ("2", "__import__('os').getpid()"), ("2", "x.__class__"),
    ("4", "2^2^2^2^2^9"), ("4", "9**9**9**9"), ("4", "factorial(10**9)"), ("4", "99999!"), ("4", "(x+1)^{100000}"),
    ("4", "(" * 200), ("4", "9" * 900),
    # spaces between digits, commas, dates that are no sums
    ("42", "4 2"), ("1 1/2", "11/2"), ("11/2", "1 1/2"), ("1,234", "1, 234"), ("2020-05-05", "2010"),
    ("2000-01-01", "1998"),
    ("2020-05-05", "2020-05-06"), ("12/25/2020", "12/25/2021"), ("3:30 PM", "3:30 AM"), ("2020-05-05", "05/05/2020"),
    # hedges
    ("A", "(A) or (B)"), ("A", "(A), (B)"), ("A", "A. B. C. D."), ("A", "A) and B)"), ("7", "7 or more"),
    ("7", "7 million"),
    # things, units, signs, intervals
    ("7 apples", "7 oranges"), ("7", "8 apples"), ("5 cm", "5 apples"), ("5", "5 thirds"), (r"\pm 3", "3"),
    ("3", r"\pm 3"),
    (r"\pm 3", r"\pm 4"), ("x>3", r"x\ge 3"), ("(3,\\infty)", r"x \ge 3"), ("[2,5]", r"2<x\le 5"),
    (r"0.\overline{3}", "0.3"), (r"0.\overline{3}", r"0.\overline{36}"), ("New York", "York"),
    (r"\emptyset", "0"), ("(x,y)=(1,2)", "(2,1)"), ("(x,y)=(1,2)", "(y,x)=(1,2)"),
]  # fmt: skip

DIFFERENT_BY_ALGEBRA = [
    (r"\frac{1}{50!}", r"\frac{1}{52!}"), (r"\pi", "3.14"), ("x^2+2x+1", "(y+1)^2"), ("x^2+2x+1", "x^2+2x+2"),
    (r"2\sqrt{2}", r"2\sqrt{3}"), (r"(-\infty,3)\cup(4,5]", r"(-\infty,3)\cup(4,5)"), ("3x+4y=7", "3x+4y=8"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"), (r"\sqrt{2}", "1.41"), ("x+1", "1"),
    ("5", "x"), ("2x", "x^2"), ("10^6", "10^5"), ("0", "0/0"), ("x_1", "x"),
    ("x>3", "x<3"), (r"\mathbb{R}", r"(-\infty, 0)"), ("a^2+b^2", "a^2-b^2"), ("5", r"\infty"), ("5", r"\log 0"),
    (r"-\infty", r"\infty"), (r"\pi", "0^{-1}"), ("5", r"\frac{1}{0}"), ("i", "1"), ("3+4i", "3-4i"), ("2+3i", "2-3*I"),
    (r"1\pm\sqrt2", r"1+\sqrt2"),
]  # fmt: skip


def no_algebra(gold: str, answer: str) -> bool:
    """For pairs that must be decided without algebra."""
    raise AssertionError(f"{gold!r} and {answer!r} went to the sandbox")


def refused(gold: str, answer: str) -> bool:
    """For pairs that no sandbox may see."""
    assert not (symbolic.acceptable(symbolic.latex(gold)) and symbolic.acceptable(symbolic.latex(answer)))
    return False


def test_the_table_is_large_enough() -> None:
    assert len(EQUAL + EQUAL_BY_ALGEBRA) >= 80 and len(DIFFERENT + DIFFERENT_BY_ALGEBRA) >= 60


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal(gold: str, answer: str) -> None:
    assert equivalent(gold, answer, Rules(), no_algebra)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different(gold: str, answer: str) -> None:
    assert not equivalent(gold, answer, Rules(), refused)


@pytest.mark.parametrize(("gold", "answer"), EQUAL_BY_ALGEBRA)
def test_equal_by_algebra(gold: str, answer: str, comparer: Comparer) -> None:
    assert equivalent(gold, answer, Rules(), comparer)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT_BY_ALGEBRA)
def test_different_by_algebra(gold: str, answer: str, comparer: Comparer) -> None:
    assert not equivalent(gold, answer, Rules(), comparer)


def test_a_gold_answer_that_cannot_be_read_only_equals_itself(comparer: Comparer) -> None:
    gold = r"\weird{x}{{"
    assert equivalent(gold, gold, Rules(), comparer)
    assert not any(equivalent(gold, a, Rules(), comparer) for a in ("0", "x", r"\weird{y}", "None", "[]"))


def test_comparisons_are_remembered_and_counted(comparer: Comparer) -> None:
    before = comparer.counts["equal"]
    assert comparer(r"\sqrt{12}", r"2\sqrt{3}") and comparer(r"\sqrt{12}", r"2\sqrt{3}")
    assert comparer.counts["equal"] == before + 1


def test_a_lane_that_cannot_start_is_a_fault_and_no_verdict(
    comparer: Comparer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = tmp_path / "lane.py"
    lane.write_text("import no_such_module\n" + symbolic.LANE.read_text())
    monkeypatch.setattr(symbolic, "LANE", lane)
    with pytest.raises(symbolic.GradingFailed, match="no_such_module"):
        comparer(r"\sqrt{12}+x", r"2\sqrt{3}+x")


@pytest.mark.slow
def test_a_comparison_that_does_not_end_is_not_equal(comparer: Comparer) -> None:
    assert not comparer("(a+b+c+d+1)^{600}", "(a+b+c+d+2)(a+b+c+d+1)^{599}")
    assert comparer.counts["timeout_cpu"] == 1


@pytest.mark.parametrize(
    ("gold", "answer", "rules", "right"),
    [
        ("3.14", "3.14159", Rules(tolerance=Fraction("0.01")), True),
        ("3.14", "3.16", Rules(tolerance=Fraction("0.01")), False),
        ("1000", "1004", Rules(relative=Fraction("0.005")), True),
        ("1000", "1006", Rules(relative=Fraction("0.005")), False),
        ("Abc", "Abc", Rules("exact"), True),
        ("Abc", "abc", Rules("exact"), False),
        ("1,2", "2,1", Rules("exact"), False),
        ("a  b", " a b ", Rules("exact"), True),
        ("5", "5", Rules("number"), True),
        ("5", "[5]", Rules("number"), False),
        ("5", "50 mm", Rules(unit="cm"), True),
        ("5", "5", Rules(unit="cm"), True),
        ("5", "5 m", Rules(unit="cm"), False),
        ("5", "5 kg", Rules(unit="cm"), False),
        ("B", "B", Rules("choice", choices=("12", "13")), True),
        ("B", "13", Rules("choice", choices=("12", "13")), True),
        ("B", "12", Rules("choice", choices=("12", "13")), False),
        ("B", "(B) 13", Rules("choice", choices=("12", "13")), True),
        ("B", "(B) 12", Rules("choice", choices=("12", "13")), False),
        ("B", "b", Rules("choice"), True),
        ("B", "C", Rules("choice"), False),
        ("B", "both", Rules("choice"), False),
    ],
)
def test_rules_from_the_data(gold: str, answer: str, rules: Rules, right: bool) -> None:
    assert equivalent(gold, answer, rules, no_algebra) is right


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(1, 10**6))
def test_fractions_in_every_spelling(top: int, bottom: int) -> None:
    value = Fraction(top, bottom)
    sign = "-" if top < 0 else ""
    for text in (f"{top}/{bottom}", rf"{sign}\frac{{{abs(top)}}}{{{bottom}}}", rf"$\dfrac{{{top}}}{{{bottom}}}$"):
        found = values.number(values.tidy(text))
        assert found is not None and found.value == value
    assert values.number(values.tidy(f"{top:,}")) == values.Number(Fraction(top))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.sampled_from(["5", "x+1", "C", r"\{1,2\}", "(1,2)", "Monday", "5 cm", r"\frac{1}{2}"]))
def test_no_text_raises(answer: str, gold: str) -> None:
    equivalent(gold, answer, Rules(), lambda a, b: symbolic.acceptable(symbolic.latex(b)) and False)


@pytest.mark.parametrize(
    "text",
    ["__import__", "os.system", "x.__class__", "eval(1)", "lambda: 0", "'a'", '"a"', "`id`", "a;b\n#", "@x",
     r"\input{file}", r"\write18", "exec", "9" * 70, "x^{9999}", "2^{3^{4}}", "12345!", "x" * 400],
)  # fmt: skip
def test_only_formulas_reach_the_sandbox(text: str) -> None:
    assert not symbolic.acceptable(symbolic.latex(text))
