"""The pictures of the command line have the actual output of the commands."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import recordings
from conftest import ROOT

FOLDER = ROOT / "docs" / "terminal"
NAMES = [recording.name for recording in recordings.RECORDINGS]


@pytest.fixture(scope="module")
def recorded(models: Path) -> dict[str, str]:
    return recordings.record(models)


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_what_the_commands_print(recorded: dict[str, str], name: str) -> None:
    kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert recordings.without_times(kept) == recordings.without_times(recorded[name]), "run tools/recordings.py"


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_small_whole_and_fetch_nothing(name: str) -> None:
    text = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert len(text) < 60_000
    picture = ElementTree.fromstring(text)
    assert picture.findtext("{*}title")
    assert {element.tag.rpartition("}")[2] for element in picture.iter()} <= {
        "svg",
        "title",
        "style",
        "rect",
        "text",
        "tspan",
    }
    assert "url(" not in text
    assert "@import" not in text


def test_no_picture_is_left_of_a_command_that_is_gone() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(NAMES)


def test_a_picture_shows_text_as_text() -> None:
    recording = recordings.Recording("made", "a < b & c", "max-weights ls '<b>'")
    picture = ElementTree.fromstring(recordings.drawn(recording, "\x1b[1;31mred & bold\x1b[0m <plain>\n"))
    spans = [(span.get("class"), span.text) for span in picture.iter("{http://www.w3.org/2000/svg}tspan")]
    assert spans == [
        ("dim", "$ "),
        ("bold", "max-weights ls '<b>'"),
        ("bold red", "red & bold"),
        (None, " <plain>"),
    ]
