"""The small checkpoint of the tour."""

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import load_file

import make_tour_file
import max_weights
import max_weights.numpy
from conftest import ROOT

FILE = ROOT / "examples" / "tour.safetensors"


def test_the_file_of_the_tour_is_what_its_script_makes() -> None:
    assert FILE.read_bytes() == make_tour_file.content()
    assert FILE.stat().st_size < 20_000


def test_the_file_of_the_tour_is_whole_aligned_and_finite() -> None:
    weights = max_weights.load_weights(FILE)
    assert max_weights.infos(weights).warnings == []
    assert all(info.aligned for info in max_weights.infos(weights))
    ours, theirs = max_weights.numpy.load_file(FILE), load_file(FILE)
    assert set(ours) == set(theirs)
    for name, array in ours.items():
        assert array.tobytes() == theirs[name].contiguous().view(torch.uint8).numpy().tobytes(), name
        assert np.isfinite(array.astype(np.float32)).all(), name
    assert ours["model.embed_tokens.weight"].dtype == ml_dtypes.bfloat16
    assert ours["model.causal_mask"].tolist() == np.tri(8, dtype=bool).tolist()
