"""The hook of mkdocs.yml: pages that lie outside docs/, a page for each rule, and links to files of the repository.

The pages are also read in the repository: a link to a file outside the site becomes one to the repository. A broken
link is a warning, which ends a strict build.
"""

from __future__ import annotations

import logging
import posixpath
import re
import shutil
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Pages outside docs/, by their names on the site. The README is its home.
OUTSIDE = {
    "index.md": "README.md",
    "project/changelog.md": "CHANGELOG.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/security.md": "SECURITY.md",
    "project/examples.md": "examples/README.md",
    "project/fuzzing.md": "fuzz/README.md",
}

# Placeholder for the address before the first release.
UNKNOWN = "https://repository.invalid/"

log = logging.getLogger("mkdocs.hooks.site_pages")
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_KEPT_BY = re.compile(r" ?<!-- (?:kept by: .*?|no promise) -->", re.DOTALL)  # for the tests, and not for readers
_RULE = re.compile(r"^### (\S+)\n", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=[)\s])")


def urls() -> dict[str, str]:
    """The addresses of the project from the package's metadata."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {name.lower(): url for name, url in metadata.get("urls", {}).items()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    for name, path in OUTSIDE.items():
        # The home has the tabs, but no list of pages at the side.
        head = "---\nhide: [navigation]\n---\n\n" if name == "index.md" else ""
        files.append(File.generated(config, name, content=head + (ROOT / path).read_text()))
    for name, text in rules().items():
        files.append(File.generated(config, f"rules/{name}.md", content=f"# {name}\n{text}"))
    return files


def rules() -> dict[str, str]:
    """The text of each rule in docs/rules.md, by its name."""
    _, *sections = _RULE.split(re.sub(r"^## .*\n", "", (ROOT / "docs/rules.md").read_text(), flags=re.MULTILINE))
    return dict(zip(sections[::2], sections[1::2], strict=True))


def index_of_rules(markdown: str) -> str:
    """The page of all rules: one line for each, with a link to its page."""

    def line(match: re.Match[str]) -> str:
        summary = match[2].strip().partition("\n")[0]
        return f"- [{match[1]}](rules/{match[1]}.md): {summary}\n"

    return re.sub(r"^### (\S+)\n((?:(?!##).*\n?)*)", line, markdown, flags=re.MULTILINE)


def on_page_content(html: str, page: Page, files: Files, **_: object) -> str:
    """Link the pages that docstrings name in the form for `help()`.

    A link to the repository is its text alone as long as the repository has no address.
    """
    html = re.sub(rf'<a href="{re.escape(UNKNOWN)}[^"]*">(.*?)</a>', r"\1", html, flags=re.DOTALL)

    def led(match: re.Match[str]) -> str:
        named = files.get_file_from_path(match[1])
        return f'<a href="{named.url_relative_to(page.file)}">{match[0]}</a>' if named else match[0]

    return re.sub(r"(?<![\w/>])docs/(\w+\.md)", led, html) if page.file.src_uri.startswith("reference/") else html


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Turn links that leave the site into links to the repository; widen the tables of benchmarks."""
    name = page.file.src_uri
    if name.startswith("benchmarks/"):
        page.meta["hide"] = ["toc"]
    if name == "rules.md":
        markdown = index_of_rules(markdown)
    markdown = _KEPT_BY.sub("", markdown)
    return with_links(markdown, name, {file.src_uri for file in files})


def on_post_page(output: str, **_: object) -> str:
    """Give the search dialog an accessible name, which the theme lacks."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def on_post_build(config: MkDocsConfig) -> None:
    """Remove unused files: source maps, and the stemmers of other languages."""
    assets = Path(config.site_dir) / "assets"
    for path in assets.rglob("*.map"):
        path.unlink()
    shutil.rmtree(assets / "javascripts" / "lunr", ignore_errors=True)


def with_links(markdown: str, name: str, pages: set[str]) -> str:
    """The text of the page `name`, with each link to a file resolved to its page or to the repository."""
    home = posixpath.dirname(OUTSIDE.get(name, f"docs/{name}"))
    names = {path: page for page, path in OUTSIDE.items()}
    anchors = {f"#{rule.replace('.', '')}": rule for rule in rules()}

    def led(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            return match[0]
        path = posixpath.normpath(posixpath.join(home, link))
        page = names.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if page == "rules.md" and anchor in anchors:
            page, anchor = f"rules/{anchors[anchor]}.md", ""
        if page in pages:
            return posixpath.relpath(page, posixpath.dirname(name)) + anchor
        if not (ROOT / path).exists():
            log.warning("%s: the link to %s leads to no file of the repository", name, link)
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{urls().get('source', UNKNOWN + 'max-weights')}/{kind}/main/{path}{anchor}"

    # Code is unchanged.
    parts = []
    end = 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(led, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(led, markdown[end:])])
