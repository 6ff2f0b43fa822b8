"""The documentation site: built strictly, small, and without requests to other machines."""

import importlib
import inspect
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from conftest import ROOT
from test_names import modules

MEGABYTES = 16  # 8 of them are pages of rules
# Names of `safetensors.torch`, `.numpy`, `.flax` and `.jax` are in the documentation of the safetensors package, and
# those of modules of layers are listed with `nn`.
PUBLIC = [
    one
    for one in ["", *modules()]
    if not one.startswith(("safetensors.", "nn."))
    and getattr(importlib.import_module(f"max_weights.{one}".rstrip(".")), "__all__", ())
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, as built by `make site`: a broken link or anchor is an error."""
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_is_small_and_has_its_pages(site: Path) -> None:
    names = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    guides = {"get_started.html", "guides/safetensors.html"}
    assert {"index.html", *guides, "rules.html", "project/changelog.html"} <= names
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < MEGABYTES * 1e6


def test_a_page_loads_nothing_from_another_machine(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|link|iframe|source)[^>]*?(?:src|href)=[\"']?(https?:)?//")
    for path in site.rglob("*.html"):
        found = [match[0] for match in loaded.finditer(path.read_text()) if 'rel="canonical"' not in match[0]]
        assert found == [], path.name
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", path.read_text()), path.name


def test_no_link_leads_to_an_address_that_is_not_known(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert re.findall(r'(?:href|src)="[^"]*repository\.invalid[^"]*"', path.read_text()) == [], path.name


def test_the_readme_is_the_home_of_the_site(site: Path) -> None:
    assert "kept by: " not in (site / "security.html").read_text()
    home = (site / "index.html").read_text()
    assert 'href="loading.html"' in home
    assert 'src="terminal/ls.svg"' in home
    assert "When not to use it" in home


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


def test_each_rule_has_a_page(site: Path) -> None:
    text = Path("docs/rules.md").read_text()
    rules = re.findall(r"^### (\S+)$", text, re.MULTILINE)
    assert {path.stem for path in (site / "rules").glob("*.html")} == set(rules)
    index = (site / "rules.html").read_text()
    assert [rule for rule in rules if f'href="rules/{rule}.html"' not in index] == []
    page = (site / "rules/file.changed.html").read_text()
    assert "MW-FI-001" in page
    assert "replace files by renaming" in page
    assert 'href="rules/names.conversion.html"' in (site / "conversion.html").read_text()


@pytest.fixture(scope="module")
def inventory(site: Path) -> set[str]:
    """The names that the reference has a heading for, as other sites link to them."""
    compressed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(compressed).decode().splitlines()}


@pytest.mark.parametrize("below", PUBLIC)
def test_every_public_name_is_in_the_reference(below: str, inventory: set[str]) -> None:
    name = f"max_weights.{below}".removesuffix(".")
    module = importlib.import_module(name)
    names = [one for one in module.__all__ if not one.startswith("_") and not inspect.ismodule(getattr(module, one))]
    assert [one for one in names if f"{name}.{one}" not in inventory] == []


def test_the_reference_has_the_whole_texts_of_compiled_names(site: Path) -> None:
    page = (site / "reference" / "tensors.html").read_text()
    assert "Give the largest finite value instead of infinity or NaN" in page  # an argument of Buffer.astype
    page = (site / "reference" / "weights.html").read_text()
    assert "max_weights.WeightsNode.load" in page  # overloads alone
    assert "max_memory" in page  # an option by a TypedDict
