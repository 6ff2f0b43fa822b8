"""What is published with the package: its metadata, its address, and a README that is read far from the repository."""

import re
import tomllib
from pathlib import Path

import pytest

from conftest import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
ADDRESS = PROJECT["urls"]["Source"]
README = (ROOT / "README.md").read_text()
PAGES = f"{ADDRESS}/blob/main/"
PICTURES = ADDRESS.replace("github.com", "raw.githubusercontent.com") + "/main/"


def texts() -> dict[Path, str]:
    """The files that may hold the address of the repository."""
    patterns = ["*.md", "*.toml", "*.cff", "*.yml", "*.yaml", ".github/**/*", "docs/**/*", "examples/*", "templates/*"]
    patterns += ["crates/*/Cargo.toml", "src/**/*.rs", "crates/*/src/**/*", "python/**/*.py", "tools/**/*.py"]
    found = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    return {path: path.read_text() for path in found if path.suffix not in {".so", ".png", ".safetensors"}}


def slugs(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}


def readme_links() -> list[str]:
    prose = re.sub(r"^```.*?^```|<!--.*?-->|`[^`\n]*`", "", README, flags=re.DOTALL | re.MULTILINE)
    inline = re.findall(r"\]\(([^)\s]+)\)", prose)
    return (
        inline
        + re.findall(r"^\[[^\]]+\]:\s*(\S+)$", prose, re.MULTILINE)
        + re.findall(r'(?:src|href)="([^"]+)"', prose)
    )


def test_every_file_names_the_repository_as_the_metadata_does() -> None:
    owner = ADDRESS.removeprefix("https://github.com/").removesuffix("/max-weights")
    named = {}
    for path, text in texts().items():
        owners = re.findall(r"(?:github\.com|githubusercontent\.com|uses:|repo:)[/ ]*([\w-]+)/max-weights\b", text)
        if owners:
            named[path.relative_to(ROOT).as_posix()] = set(owners)
    assert {"README.md", "pyproject.toml", "Cargo.toml", "action.yml", "docs/reports.md"} <= named.keys()
    assert {path: owners for path, owners in named.items() if owners != {owner}} == {}


def test_links_of_the_readme_lead_somewhere_from_any_page_that_shows_it() -> None:
    links = readme_links()
    assert len(links) > 20
    for link in links:
        assert link.startswith("https://"), f"{link} leads nowhere on a page of a package index"
        for base in (PAGES, PICTURES):
            if link.startswith(base):
                path, _, anchor = link.removeprefix(base).partition("#")
                assert (ROOT / path).exists(), link
                assert not anchor or anchor in slugs((ROOT / path).read_text()), link


def test_labels_of_the_readme_are_defined() -> None:
    defined = set(re.findall(r"^\[([^\]]+)\]: ", README, re.MULTILINE))
    body = re.sub(r"^```.*?^```|`[^`\n]*`|^\[[^\]]+\]: .*$", "", README, flags=re.DOTALL | re.MULTILINE)
    used = {label or text for text, label in re.findall(r"\[([^\]]+)\](?:\[([^\]]*)\])?(?!\()", body)}
    assert used == defined


def test_extras_are_for_users_and_groups_for_the_project() -> None:
    extras, groups = PROJECT["optional-dependencies"], PYPROJECT["dependency-groups"]
    assert not set(extras) & set(groups)
    named = {
        extra
        for text in texts().values()
        for names in re.findall(r"max[-_]weights\[([\w,-]+)\]", text)
        for extra in names.split(",")
    }
    assert named
    assert named <= set(extras), "a text names an extra that is not there"
    makefile = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"--group (\w+)", makefile)) <= set(groups)
    assert "--extra " not in makefile


@pytest.mark.parametrize("name", ["Homepage", "Documentation", "Source", "Issues", "Changelog"])
def test_the_project_says_where_it_is(name: str) -> None:
    assert PROJECT["urls"][name].startswith("https://")


def test_classifiers_agree_with_the_versions_that_it_takes() -> None:
    versions = [line.rsplit(" :: ", 1)[1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert f">={versions[0]}" == PROJECT["requires-python"]
    assert PROJECT["authors"]
