"""What is published with the package: its metadata, its address, and a README that works outside the repository."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import index_readme
import wheel_check
from conftest import ROOT
from refusals import refuses

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
URLS = PROJECT.get("urls", {})
ADDRESS = URLS.get("Source", "https://github.com/account/max-weights")  # there is none before the first release
README = (ROOT / "README.md").read_text()
PAGES = f"{ADDRESS}/blob/main/"
PICTURES = ADDRESS.replace("github.com", "raw.githubusercontent.com") + "/main/"


def texts() -> dict[Path, str]:
    """The files that may contain the address of the repository."""
    patterns = ["*.md", "*.toml", "*.cff", "*.yml", "*.yaml", ".github/**/*", "docs/**/*", "examples/*", "templates/*"]
    patterns += ["src/**/*.rs", "python/**/*.py", "tools/**/*.py"]
    patterns += ["crates/*/*.md", "crates/*/Cargo.toml", "crates/*/src/**/*"]
    found = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    return {path: path.read_text() for path in found if path.suffix not in {".bin", ".so", ".png", ".safetensors"}}


def slugs(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}


def links(page: str) -> list[str]:
    """The targets of links and pictures on a Markdown page."""
    prose = re.sub(r"^```.*?^```|<!--.*?-->|`[^`\n]*`", "", page, flags=re.DOTALL | re.MULTILINE)
    return (
        re.findall(r"\]\(([^)\s]+)\)", prose)
        + re.findall(r"^\[[^\]]+\]:\s*(\S+)$", prose, re.MULTILINE)
        + re.findall(r'(?:src|href)="([^"]+)"', prose)
    )


def test_every_file_names_the_repository_as_the_metadata_does_and_none_before_there_is_one() -> None:
    owner = ADDRESS.removeprefix("https://github.com/").removesuffix("/max-weights")
    named = {}
    for path, text in texts().items():
        owners = re.findall(r"(?:github\.com|githubusercontent\.com|uses:|repo:)[/ ]*([\w-]+)/max-weights\b", text)
        if owners and path.name != "CONTRIBUTING.md":  # which explains what to write
            named[path.relative_to(ROOT).as_posix()] = set(owners)
    assert named if URLS else not named, named
    assert {path: owners for path, owners in named.items() if owners != {owner}} == {}


def test_the_first_command_of_the_readme_is_one_that_works() -> None:
    command = re.search(r"^\$ (.*)$", README, re.MULTILINE)
    assert command is not None
    assert command[1] == ("pip install max-weights" if URLS else "pip install .")
    assert PYPROJECT["build-system"]["build-backend"] == "maturin"


def test_links_of_the_readme_lead_to_files_beside_it() -> None:
    assert len(links(README)) > 10
    for link in links(README):
        path, _, anchor = link.partition("#")
        assert (ROOT / path).is_file(), link
        assert not anchor or anchor in slugs((ROOT / path).read_text()), link


def test_links_of_the_readme_lead_to_the_repository_where_an_index_shows_it() -> None:
    shown = links(index_readme.absolute(README, ADDRESS))
    assert [link.removeprefix(PAGES).removeprefix(PICTURES) for link in shown] == links(README)
    assert all(link.startswith(PICTURES if link.endswith(".svg") else PAGES) for link in shown)
    page = "[`a`](docs/a.md#b) [c](https://example.org/c.md) `[d](d.md)`\n```\n[e](e.md)\n```\n"
    assert index_readme.absolute(page, ADDRESS) == page.replace("docs/a.md", f"{PAGES}docs/a.md")


def test_nothing_that_a_reader_can_follow_has_a_placeholder() -> None:
    """The address is unknown before the first release: until then no page links to it."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("crates/*/*.md"), *(ROOT / "docs").rglob("*.md")]:
        assert [link for link in links(path.read_text()) if "OWNER" in link] == [], path.name


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
    assert not URLS or URLS[name].startswith("https://")


def test_classifiers_agree_with_the_versions_that_it_takes() -> None:
    versions = [line.rsplit(" :: ", 1)[1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert f">={versions[0]}" == PROJECT["requires-python"]
    assert PROJECT["authors"]


def test_snippets_of_the_readme_need_numpy_alone_or_say_what_else() -> None:
    found = wheel_check.snippets(README)
    assert len(found) == len(re.findall("^```python$", README, re.MULTILINE)) >= 2
    for needs, text in found:
        trees = ast.walk(ast.parse(text))
        imported = {alias.name.split(".")[0] for node in trees if isinstance(node, ast.Import) for alias in node.names}
        assert imported == {"max_weights", *({"numpy"} & imported), *needs.split()}
    assert [needs for needs, _ in found] == ["torch", ""], "most come with torch; the other one is for everybody"


def test_a_wheel_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "made.whl"
    wheel.write_bytes(bytes(101))
    monkeypatch.setattr(wheel_check, "MAX", 100)
    with refuses(SystemExit):
        wheel_check.main([str(wheel)])


def test_a_snippet_that_warns_ends_the_check_of_a_wheel(tmp_path: Path) -> None:
    warns = "import warnings; warnings.warn('old', DeprecationWarning)"
    with refuses(SystemExit):
        wheel_check.run([sys.executable, "-I", "-W", "error", "-c", warns], tmp_path)
    wheel_check.run([sys.executable, "-I", "-W", "error", "-c", "print('nothing is wrong')"], tmp_path)


def workflows() -> dict[str, Any]:
    paths = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    return {path.name: yaml.safe_load(path.read_text()) for path in paths}


@pytest.mark.parametrize("schema", ["github-workflows", "github-workflows-require-timeout"])
def test_workflows_are_of_the_form_that_github_takes(schema: str) -> None:
    paths = sorted(map(str, (ROOT / ".github" / "workflows").glob("*.yml")))
    assert len(paths) == 3
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_nothing_in_the_workflows_lets_strangers_in() -> None:
    command = [
        "zizmor",
        "--offline",
        "--config",
        ROOT / ".github" / "zizmor.yml",
        ROOT / ".github",
        ROOT / "action.yml",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_scripts_of_the_workflows_are_good_shell() -> None:
    scripts = [
        step["run"]
        for workflow in [
            *workflows().values(),
            {"jobs": {"action": yaml.safe_load((ROOT / "action.yml").read_text())["runs"]}},
        ]
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    assert len(scripts) > 15
    for script in scripts:
        assert "${{" not in script, "what an expression gives would be read as a program"
        command = ["shellcheck", "--shell", "bash", "--severity", "warning", "-"]
        done = subprocess.run(command, input=script, capture_output=True, text=True)
        assert done.returncode == 0, f"{script}\n{done.stdout}"


def test_what_the_workflows_call_is_there() -> None:
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, workflow in workflows().items():
        scripts = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
        for script in scripts:
            assert set(re.findall(r"\bmake ([a-z-]+)", script)) <= verbs, name
            assert all((ROOT / path).exists() for path in re.findall(r"\b(?:tools|\.ci)/[\w.]+", script)), name
            assert set(re.findall(r"--group (\w+)", script)) <= set(PYPROJECT["dependency-groups"]), name


def test_the_version_is_one() -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    assert citation["license"] == PROJECT["license"]
    assert citation.get("repository-code") == URLS.get("Source")


def test_forms_for_issues_ask_for_what_is_needed() -> None:
    for name in ("bug", "format"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
        assert {"name", "description", "body"} <= form.keys()
        ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
        assert len(ids) == len(set(ids))
    assert "max-weights versions" in (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text()
