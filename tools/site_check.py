"""Check every page of the built site in a browser for accessibility errors and overflowing content.

`make site-check` runs it over site/, with the Chromium of the machine. axe-core checks each page wide and narrow, light
and dark. Requests to other machines and horizontal scrolling are errors too. `--screenshots FOLDER` keeps a picture of
each.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import itertools
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

SITE = Path(__file__).resolve().parents[1] / "site"
WIDTHS = {"wide": 1280, "narrow": 390}
SHOWN = 3  # elements of a page that break one rule
# Rules of WCAG 2.2, levels A and AA; axe-core's other rules are advice.
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A file server without logging."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def found_on(tab: Page, home: str, name: str) -> Iterator[str]:
    """The errors of a page, one per line."""
    requested: list[str] = []
    tab.on("request", lambda request: requested.append(request.url))
    tab.goto(home + name, wait_until="load")
    tab.wait_for_timeout(200)
    yield from (f"asks for {url}" for url in requested if url.startswith("http") and not url.startswith(home))
    if tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
        yield "scrolls sideways"
    for violation in Axe().run(tab, options=RULES).response["violations"]:
        for node in violation["nodes"][:SHOWN]:
            html = " ".join(node["html"].split())
            yield f"{violation['id']}: {node['failureSummary'].splitlines()[-1].strip()}: {html[:160]}"


def main() -> int:
    """Check the pages, and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help="pages below the site; all without one")
    parser.add_argument("--site", type=Path, default=SITE)
    parser.add_argument("--screenshots", type=Path)
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium was found: on Debian and Ubuntu install chromium")
    site = arguments.site
    pages = arguments.pages or sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    errors = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for (kind, width), scheme in itertools.product(WIDTHS.items(), ("light", "dark")):
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            tab = context.new_page()
            for name in pages:
                for line in found_on(tab, home, name):
                    print(f"{name}, {kind}, {scheme}: {line}", flush=True)
                    errors += 1
                if arguments.screenshots:
                    tab.screenshot(path=arguments.screenshots / f"{name.replace('/', '_')}-{kind}-{scheme}.png")
            context.close()
        browser.close()
    print(f"{len(pages)} pages, each {len(WIDTHS) * 2} times: {errors} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
