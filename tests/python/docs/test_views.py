"""The notebook views of each kind of object."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import max_weights
from conftest import safetensors_bytes
from max_weights import DType, load_weights, nn
from max_weights._benching.result import BenchResult, BenchRow
from max_weights._resharding import reshard
from max_weights._weight_data import WeightData
from max_weights.driver import Buffer
from max_weights.graph import DeviceRef
from max_weights.graph.quantization import QuantizationEncoding
from refusals import refuses
from test_html import Page


def seen(value: object) -> str:
    """The text of a view, after a check of its tags."""
    return " ".join(Page(value._repr_html_()).text.split())  # type: ignore[attr-defined]


@pytest.fixture
def path(make_file: Callable[..., Path]) -> Path:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    return make_file({f"layers.{layer}.{name}.weight": values for layer in range(2) for name in ("up", "down")})


def test_a_tree_has_columns_and_folds(path: Path) -> None:
    weights = load_weights(path)
    made = weights._repr_html_().replace("</span> ", "</span>")
    assert '<details open><summary class="mw-row"><span>(all)</span><span>4 weights</span><span></span>' in made
    assert "<span>float32</span><span>[3, 4]</span><span>48 B</span></div>" in made
    assert made.count("<details") == made.count("<summary") == 5  # all, layers, the first of them, and two in it
    assert "0–1 (2 alike)" in seen(weights)


def test_a_tree_says_what_it_leaves_out(make_file: Callable[..., Path]) -> None:
    names = [f"{first}.{second}.{third}" for first in "abcdefghij" for second in "abcdefghij" for third in "abcdefghij"]
    made = load_weights(make_file({name: np.zeros(1, np.int8) for name in names}))._repr_html_()
    assert made.count('mw-row"') == 240 + 1
    assert "… 871 more lines" in made


def test_a_name_that_is_not_there_shows_what_is_near(path: Path) -> None:
    assert "did you mean 'layers.0.up.weight'" in seen(load_weights(path).layers[0].upp.weight)


def test_a_weight_and_its_buffer_show_what_they_are_and_their_values(path: Path) -> None:
    data = load_weights(path).layers[1].down.weight.data()
    for view in (seen(data), seen(data.to_buffer())):
        assert "shape[3, 4]" in view
        assert "bytes48" in view
        assert "a view of a mapped file" in view
        assert "[ 8. 9. 10. 11.]" in view
    assert "layers.1.down.weight" in seen(data)
    assert "strides[1, 3]" in seen(Buffer.from_numpy(np.zeros((3, 4), np.int8, order="F")[:, ::-1].copy("F")))


def test_of_many_values_the_ends_are_shown() -> None:
    made = Buffer.from_numpy(np.arange(6**7).reshape(6, 6, 6, 6, 6, 6, 6))._repr_html_()
    assert len(made) < 10_000
    assert "[ 0 1 2 3 4 5]" in " ".join(Page(made).text.split())


def test_of_a_truncated_file_the_error_is_shown_beside_what_is_known(path: Path) -> None:
    data = load_weights(path).layers[1].down.weight.data()
    path.write_bytes(b"")
    for view in (seen(data), seen(data.to_buffer())):
        assert "shape[3, 4]" in view
        assert "it was truncated" in view


def test_what_has_no_values_shows_none(path: Path) -> None:
    with max_weights.driver.virtual_devices():
        virtual = load_weights(path).layers[0].up.weight.data().astype("float16")
        assert "values" not in seen(virtual)
    packed = WeightData(np.zeros((2, 34), np.uint8), "w", DType.uint8, [2, 34], QuantizationEncoding.Q8_0)
    assert "elements[2, 32]" in seen(packed)
    assert "values" not in seen(packed)
    assert "values" not in seen(Buffer.zeros([4], DType.float4_e2m1fn))
    assert "dataTensor" in seen(WeightData(torch.zeros(2), "w", DType.float32, [2]))


def test_a_listing_and_its_records_are_tables(path: Path) -> None:
    infos = max_weights.infos(load_weights(path))
    assert "WeightInfos 4 weights" in seen(infos)
    assert infos._repr_html_().count("<tr>") == 1 + 4
    assert "offset" in seen(infos[0])
    assert infos[0].name in seen(infos[0])


def test_a_listing_of_many_is_short_and_makes_no_more_than_it_shows(make_file: Callable[..., Path]) -> None:
    infos = max_weights.infos(load_weights(make_file({f"w{number}": np.zeros(1, np.int8) for number in range(5000)})))
    assert len(infos._repr_html_()) < 40_000
    assert "… and 4,900 more" in seen(infos)


def test_metadata_of_gguf_are_a_table(models: Path) -> None:
    metadata = load_weights(models / "smollm2-135m.Q4_1.gguf").metadata
    made = metadata._repr_html_()  # type: ignore[union-attr]
    assert "general.architecture" in made
    assert "&#x27;llama&#x27;" in made
    assert len(made) < 40_000


def test_plans_of_loads_are_tables(path: Path) -> None:
    weights = load_weights(path)
    view = seen(max_weights.plan(weights, dtype="bfloat16"))
    assert "4 weights, 192 bytes of 1 file" in view
    assert "convert" in view
    assert max_weights.plan(weights, dtype="bfloat16")._head() in str(max_weights.plan(weights, dtype="bfloat16"))


def test_plans_of_ranks_are_tables(tmp_path: Path, path: Path) -> None:
    plan = reshard(path, tmp_path / "ranks", 2, strategies={"*": None}, plan_only=True)
    view = seen(plan)
    assert "ReshardPlan 4 weights for 2 ranks" in view
    assert "layers.*.down.weight2whole on each rank" in view


def test_results_of_benches_are_tables() -> None:
    ours = BenchRow("max_weights", "", {"call": [1e-3], "touched": [0.5], "cold": []})
    result = BenchResult(["a"], "safetensors", 1_000_000, 3, [ours, BenchRow("x", "x", failed="no")])
    assert "1 ms500 ms" in seen(result)
    assert result.summary in seen(result)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(2, 3, DType.float32, DeviceRef.CPU())

    def __call__(self) -> None: ...


def test_modules_and_their_loading_are_tables() -> None:
    model = Model()
    view = seen(model)
    assert "Model 2 modules, 6 parameters" in view
    assert "0/1" in view
    report = model.load_state_dict({"down": np.zeros(2)}, strict=False)
    about = "LoadReport: not ok 0 loaded, 1 missing, 1 unexpected"
    for text in (about, "missingup.weight", "unexpecteddown"):
        assert text in seen(report)


def test_statistics_draw_the_histograms_that_were_asked_for(tmp_path: Path) -> None:
    values = np.array([0, 0, 0, 1, 2, np.nan, np.inf, 4], np.float32)
    path = tmp_path / "model.safetensors"
    entries = {"w": ("F32", [8], values.tobytes()), "odd": ("F6_X", [4], bytes(3)), "b": ("I8", [2], b"\x07\x07")}
    path.write_bytes(safetensors_bytes(entries))
    weights = load_weights(path)
    assert "histogram" not in max_weights.stats(weights)
    found = max_weights.stats(weights, bins=4)
    rows = {row["name"]: row for row in found.rows()}
    assert rows["w"]["histogram"] == [3, 1, 1, 1]
    assert rows["odd"]["histogram"] is None
    assert rows["b"]["histogram"] == [2]
    assert found._repr_html_().count("<svg") == 2
    assert list(found)[-2:] == ["histogram", "note"]
    plain = max_weights.stats(weights)
    assert {column: found[column] for column in plain} == dict(plain)


def test_histograms_count_what_numpy_counts(make_file: Callable[..., Path]) -> None:
    values = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    weights = load_weights(make_file({"half": values.astype(np.float16), "single": values}))
    exact, close = (np.histogram(weights[name].numpy().astype(np.float64), 24)[0] for name in ("half", "single"))
    rows = {row["name"]: row["histogram"] for row in max_weights.stats(weights, bins=24).rows()}
    # The bin of a value on an edge depends on rounding.
    assert np.abs(exact - rows["half"]).sum() < 0.002 * values.size
    assert sum(rows["single"]) == values.size
    assert np.abs(close - rows["single"]).sum() < 0.1 * values.size  # those of wider types are close


@pytest.mark.parametrize("bins", [-1, True, 1 << 17])
def test_bins_are_a_number_that_can_be(path: Path, bins: int) -> None:
    with refuses(ValueError):
        max_weights.stats(load_weights(path), bins=bins)


def test_files_that_are_safe_but_for_notes_are_shown_as_clean(path: Path) -> None:
    report = max_weights.validate(path)
    assert seen(report).startswith("Report: ok 1 file, 0 findings: clean")
    assert path.name in seen(report)
