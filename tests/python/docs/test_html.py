"""The building blocks of notebook views: escaped, bounded, and self-contained."""

import re
from html.parser import HTMLParser
from itertools import count
from typing import Any

import pytest

from max_weights import _html as html

VOID = {"br"}
HOSTILE = "\x1b]0;x\x07\u202e<img src=x onerror=y>&'\"\n"


class Page(HTMLParser):
    """The tags of a view, checked for balance, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href", "style")], attrs
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def test_what_stands_in_a_view_is_text_and_never_markup() -> None:
    made = html.view(
        HOSTILE,
        HOSTILE,
        html.table((HOSTILE, "n"), [(HOSTILE, html.bad(HOSTILE))], numbers=("n",), code=(HOSTILE,)),
        html.properties([(HOSTILE, HOSTILE)]),
        html.paragraph(HOSTILE),
        html.pre(HOSTILE),
    )
    page = Page(made)
    assert "img" not in page.tags
    assert page.text.count("<img src=x onerror=y>&'\"") == 9
    assert "\x1b" not in made
    assert "\u202e" not in made


def test_a_view_asks_for_nothing_and_runs_nothing() -> None:
    made = html.view("a", "b", html.sparkline([1, 2]))
    assert not re.search(r"https?:|url\(|@import|<script|<link|javascript:", made)
    style = made[made.index("<style>") + 7 : made.index("</style>")]
    # Every rule is scoped to the view, so that the rest of the notebook does not change.
    rules = re.sub(r"@container[^{]*\{", "", style)
    for selector in re.findall(r"(?:^|\})\s*([^{}]+)\{", rules):
        for one in re.split(r",(?![^(]*\))", selector):
            assert re.search(r"\.(max-weights|mw-\w+)", one), one


def test_a_table_takes_no_more_rows_than_it_shows() -> None:
    taken = count()
    made = html.table(("a",), ((number,) for number in taken), total=1_000_000)
    assert made.count("<tr>") == 1 + html.ROWS
    assert next(taken) == html.ROWS
    assert "… and 999,900 more" in made


def test_cells_are_bounded_and_numbers_grouped() -> None:
    made = html.table(
        ("a", "b"), [("x" * 1_000_000, 1_234_567), (None, 0.123456789), ((384, 12), True)], numbers=("b",)
    )
    assert len(made) < 2_000
    assert '<td class="mw-n">1,234,567</td>' in made
    assert '<td></td><td class="mw-n">0.123457</td>' in made
    assert '<td>[384, 12]</td><td class="mw-n">True</td>' in made
    assert html.table(("a",), []) == ""


def test_lines_are_the_first_of_many() -> None:
    made = html.pre("\n".join(map(str, range(1000))))
    assert made.count("<br>") == 40
    assert made.endswith("<br>39<br>…</pre>")


@pytest.mark.parametrize(("number", "text"), [(0, "0 weights"), (1, "1 weight"), (12345, "12,345 weights")])
def test_things_are_counted_as_people_do(number: int, text: str) -> None:
    assert html.count(number, "weight") == text


def test_a_sparkline_has_a_bar_for_each_count_and_shows_the_smallest() -> None:
    made = html.sparkline([0, 1, 1_000_000, 500_000])
    bars = re.findall(r"M([\d.]+) 22h([\d.]+)v-([\d.]+)H", made)
    assert [float(left) for left, _, _ in bars] == [30, 60, 90]
    assert [float(height) for _, _, height in bars] == [1, 22, 11]
    assert "histogram of 1,500,001 values in 4 bins" in made
    assert html.sparkline([]) == ""
    assert html.sparkline([0, 0]).count('<path d=""/>') == 1
    Page(html.frame(made))
