"""The layout of views in Chromium: nothing is wider than the page, and every text is readable, light and dark."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import notebook_pictures

# Reports the width of each view, and the contrast of each text with the page, by the formula of WCAG. A canvas parses
# every colour notation.
MEASURE = """<script>
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const page = getComputedStyle(document.body).backgroundColor;
function luminance(color) {
  for (const one of [page, color]) { canvas.fillStyle = one; canvas.fillRect(0, 0, 1, 1); }
  const [red, green, blue] = [...canvas.getImageData(0, 0, 1, 1).data].map(
    (part) => part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
function contrast(color) {
  const [less, more] = [luminance(color), luminance(page)].sort((a, b) => a - b);
  return (more + 0.05) / (less + 0.05);
}
const found = [...document.querySelectorAll(".max-weights")].map((view) => {
  view.querySelectorAll("details").forEach((one) => { one.open = true; });
  const texts = [...view.querySelectorAll(":not(style)")].filter(
    (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return {
    wide: Math.max(...[...view.querySelectorAll(":not(.mw-box *):not(pre *):not(style)")].map(
      (one) => one.getBoundingClientRect().right)),
    texts: texts.length,
    contrast: Math.min(...texts.map((one) => contrast(getComputedStyle(one).color))),
  };
});
const told = document.createElement("output");
told.id = "found";
told.textContent = JSON.stringify(found);
document.body.append(told);
</script>"""


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory, models: Path) -> dict[str, str]:
    if notebook_pictures.chromium() is None:
        pytest.skip("Chromium is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAX_WEIGHTS_MODELS", str(models))
        return {name: made() for name, made in notebook_pictures.views(tmp_path_factory.mktemp("views")).items()}


def measured(page: Path, views: dict[str, str], scheme: str, width: int) -> list[dict[str, Any]]:
    page.write_text(notebook_pictures.page_of(scheme, width, *views.values(), MEASURE))
    dom = notebook_pictures.browse(page, width, "--dump-dom").decode()
    found = re.search(r'<output id="found">(.*?)</output>', dom)
    assert found is not None, dom[-2000:]
    measures: list[dict[str, Any]] = json.loads(found[1])
    assert len(measures) == len(views) > 15
    return measures


@pytest.mark.parametrize("scheme", notebook_pictures.THEMES)
@pytest.mark.parametrize("kind", notebook_pictures.WIDTHS)
def test_views_fit_the_page_and_can_be_read(tmp_path: Path, views: dict[str, str], scheme: str, kind: str) -> None:
    width = notebook_pictures.WIDTHS[kind]
    for name, found in zip(views, measured(tmp_path / "page.html", views, scheme, width), strict=True):
        assert found["wide"] <= width - notebook_pictures.MARGIN, (name, found)
        assert found["texts"] > 0, name
        assert found["contrast"] >= 4.5, (name, found)


def test_a_page_that_is_too_wide_or_too_pale_is_found(tmp_path: Path, views: dict[str, str]) -> None:
    pale = "<p><b style='color:#888;display:block;width:2000px'>x</b></p>"
    spoilt = {name: view.replace("</style>", f"</style>{pale}") for name, view in views.items()}
    for found in measured(tmp_path / "page.html", spoilt, "light", 1100):
        assert found["wide"] > 1100
        assert found["contrast"] < 4.5
