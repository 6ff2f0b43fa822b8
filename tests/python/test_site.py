"""The documentation site: built strictly, small, and without anything of another machine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

MEGABYTES = 10


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, as `make site` builds it: a link or an anchor that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_is_small_and_has_its_pages(site: Path) -> None:
    names = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {"loading.html", "rules.html", "project/changelog.html"} <= names
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < MEGABYTES * 1e6


def test_a_page_loads_nothing_from_another_machine(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|link|iframe|source)[^>]*?(?:src|href)=[\"']?(https?:)?//")
    for path in site.rglob("*.html"):
        found = [match[0] for match in loaded.finditer(path.read_text()) if 'rel="canonical"' not in match[0]]
        assert found == [], path.name
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", path.read_text()), path.name


def test_links_lead_to_pages_and_else_to_the_repository(caplog: pytest.LogCaptureFixture) -> None:
    from site_pages import with_links

    pages = {"loading.md", "plan.svg", "project/changelog.md", "security.md"}

    def led(link: str, page: str = "security.md") -> str:
        return with_links(f"[text]({link})", page, pages).removeprefix("[text](").removesuffix(")")

    for link in ("loading.md#plan", "plan.svg", "https://example.org/x.md", "#here"):
        assert led(link) == link
    assert led("../CHANGELOG.md") == "project/changelog.md"
    assert led("docs/loading.md#plan", "project/changelog.md") == "../loading.md#plan"
    assert led("../src/lib.rs").endswith("/blob/main/src/lib.rs")
    assert led("src", "project/changelog.md").endswith("/tree/main/src")
    code = "`[text](gone.md)`\n```\n[text](gone.md)\n```\n"
    assert with_links(code, "security.md", pages) == code
    assert caplog.messages == []
    led("gone.md")
    assert caplog.messages == ["security.md: the link to gone.md leads to no file of the repository"]
