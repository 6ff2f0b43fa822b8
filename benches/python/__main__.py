"""Run the benches of this folder and publish what they found.

    python benches/python [NAME...] [--dir DIR | --keep DIR] [--docs PAGE] [--results bench-results] [--small]

Every module here with `measure` is a bench: a new one is one new file. The measured files (17 GB) are made in a
temporary folder and deleted afterwards. It has to be on a disk: a RAM disk has no cold cache. With `--keep` the files
stay for the next run. Without `--docs` the tables are printed. `--docs docs/benchmarks.md` rewrites the charts, and the
tables between their markers in the pages of docs/benchmarks/. A table without markers gets a new page. `--small` runs
everything once on small files, as a smoke test: its figures are meaningless, and it refuses `--docs`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import chart
import report
from harness import BenchError, Unavailable, load_module

HERE = Path(__file__).resolve().parent
# The order of runs; a bench that is not named here comes after them.
ORDER = (
    "import_time",
    "command_line",
    "validation",
    "validation_recall",
    "open_list",
    "shards",
    "many_tensors",
    "to_torch",
    "loading",
    "loading_cold",
    "slices_of_a_rank",
    "experts",
    "rows",
    "load_into",
    "dropin",
    "network_disk",
    "gpu_link",
    "beside_a_read",
    "fingerprint",
    "shards_of_a_file",
    "saving",
    "ranks",
    "converting",
    "dcp",
    "deltas",
    "names",
    "casts",
    "gguf_files",
    "gguf_blocks",
    "quantized",
    "gguf_pretrained",
    "torch_files",
    "modules",
    "graphs",
)


def order(name: str) -> int:
    """Return the sort key of a bench."""
    return ORDER.index(name) if name in ORDER else len(ORDER)


def discover() -> dict[str, ModuleType]:
    """Return the benches of this folder by name, in their order."""
    modules = {
        path.stem: load_module(path)
        for path in HERE.glob("*.py")
        if path.stem not in ("__main__", "chart", "harness", "report")
    }
    found = [name for name, module in modules.items() if hasattr(module, "measure")]
    return {name: modules[name] for name in sorted(found, key=lambda name: (order(name), name))}


def draw_charts(page: Path) -> None:
    """Draw the chart of the overview `page`, and that of the decoders, from the tables of the pages in its folder."""
    folder = page.with_suffix("")
    tables = report.all_tables(folder)
    drawing = page.with_suffix(".svg")
    chart.draw(tables, drawing)
    image = f"![Each loader's time as a multiple of max_weights': lazy above, touched below]({drawing.name})"
    page.write_text(report.replace_table(page.read_text(encoding="utf-8"), "chart", image), encoding="utf-8")
    drawing = folder / "gguf-blocks.svg"
    chart.draw_blocks(tables, drawing)
    image = f"![GB/s at which each decoder makes float32 of packed blocks, and memset's]({drawing.name})"
    report.publish(folder, "blocks chart", image)


def run(names: list[str], folder: Path, options: argparse.Namespace) -> bool:
    """Run the benches in `folder` and publish each one as it ends; whether every target was met."""
    benches = discover()
    unknown = [name for name in names if name not in benches]
    if unknown:
        raise BenchError(f"there is no bench {', '.join(unknown)}; there are {', '.join(benches)}")
    found = report.environment()
    met = True
    for name in names or benches:
        print(f"{name}: {benches[name].TITLE}", flush=True)
        try:
            result: report.Report = benches[name].measure(folder, options.small)
        except Unavailable as reason:
            print(f"{name}: not measured on this machine: {reason}", flush=True)
            continue
        report.write_json(result, options.results, found)
        line = report.environment_line(found)
        if options.docs is None:
            print(report.markdown(result, line), flush=True)
        else:
            body = report.markdown(result, report.named_machine(line, options.docs))
            report.publish(options.docs.with_suffix(""), name, body)
            print(report.summary(result), flush=True)
        met = met and all(target.met for target in result.targets)
    if options.docs is not None:
        draw_charts(options.docs)
    return met


def main() -> int:
    """Run the command line; return 1 when a bench could not run. A missed target is reported, but is no error."""
    parser = argparse.ArgumentParser(
        prog="benches/python", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--dir", type=Path, help="where the temporary folder is made (default: the system's)")
    parser.add_argument("--keep", type=Path, help="a folder for the files, which stay there")
    parser.add_argument("--docs", type=Path, help="the page whose tables are rewritten")
    parser.add_argument("--results", type=Path, default=Path("bench-results"), help="where the JSON files go")
    parser.add_argument("--small", action="store_true", help="one run on small files")
    options = parser.parse_args()
    if options.small and options.docs is not None:
        parser.error("--small measures nothing worth publishing: leave --docs away")
    try:
        made = tempfile.TemporaryDirectory(prefix="max-weights-bench-", dir=options.dir)
        with made if options.keep is None else contextlib.nullcontext(options.keep) as folder:
            met = run(options.names, Path(folder), options)
    except (BenchError, report.MarkerError) as error:
        print(f"benches: {error}", file=sys.stderr)
        return 1
    if not met and not options.small:
        print("some targets were missed: the tables say which")
    return 0


if __name__ == "__main__":
    sys.exit(main())
