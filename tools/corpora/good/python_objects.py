"""Files that openly run code when they are loaded: they need trust, but are no malware."""

from __future__ import annotations

import argparse
import functools
import io
import pathlib
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import joblib
import numpy as np
import torch
from torch import nn

from corpora.good.written import NOT_BAD, TRUST, by_path, saved, single
from corpora.item import Item

GROUP = "needs-trust"


def estimators() -> Iterator[Item]:
    """scikit-learn, by pickle and by joblib."""
    import sklearn.cluster
    import sklearn.compose
    import sklearn.decomposition
    import sklearn.ensemble
    import sklearn.feature_extraction.text
    import sklearn.linear_model
    import sklearn.naive_bayes
    import sklearn.neighbors
    import sklearn.neural_network
    import sklearn.pipeline
    import sklearn.preprocessing
    import sklearn.svm
    import sklearn.tree

    x, y = np.arange(40.0).reshape(20, 2) % 7, np.arange(20) % 2
    fitted: list[Any] = [
        sklearn.linear_model.LogisticRegression(),
        sklearn.linear_model.Ridge(),
        sklearn.linear_model.SGDClassifier(max_iter=5, tol=None),
        sklearn.tree.DecisionTreeClassifier(),
        sklearn.ensemble.RandomForestClassifier(n_estimators=2),
        sklearn.ensemble.GradientBoostingClassifier(n_estimators=2),
        sklearn.ensemble.HistGradientBoostingClassifier(max_iter=2),
        sklearn.svm.SVC(),
        sklearn.neighbors.KNeighborsClassifier(2),
        sklearn.naive_bayes.GaussianNB(),
        sklearn.cluster.KMeans(2, n_init=1),
        sklearn.decomposition.PCA(1),
        sklearn.preprocessing.StandardScaler(),
        sklearn.preprocessing.OneHotEncoder(),
        sklearn.neural_network.MLPClassifier(4, max_iter=5),
        sklearn.pipeline.make_pipeline(sklearn.preprocessing.MinMaxScaler(), sklearn.linear_model.LinearRegression()),
    ]
    for estimator in fitted:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator.fit(x, y)
        name = type(estimator).__name__
        yield single(GROUP, f"{name}.pkl", pickle.dumps(estimator), TRUST)
        yield by_path(GROUP, f"{name}.joblib", lambda path, estimator=estimator: joblib.dump(estimator, path), TRUST)
    words = sklearn.feature_extraction.text.TfidfVectorizer().fit(["a text", "another text"])
    for protocol in (0, 2, 5):
        yield single(GROUP, f"TfidfVectorizer-{protocol}.pkl", pickle.dumps(words, protocol), TRUST)
    for method in ("zlib", "gzip", "bz2", "xz", "lzma"):
        write = functools.partial(joblib.dump, fitted[0], compress=(method, 3))
        yield by_path(GROUP, f"compressed-{method}.joblib", write, TRUST)
    array = {"w": np.arange(5000.0), "text": "x"}
    yield by_path(GROUP, "arrays.joblib", lambda path: joblib.dump(array, path), NOT_BAD)


class Net(nn.Module):
    """A module that is saved as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer."""
        result: torch.Tensor = self.layer(x)
        return result


def torch_objects() -> Iterator[Item]:
    """Whole modules, TorchScript, packages and programs of torch."""
    for module in (nn.Linear(2, 2), nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), nn.LSTM(2, 2), Net()):
        name = type(module).__name__
        yield single(GROUP, f"module-{name}.pt", saved(module), TRUST)
        yield single(GROUP, f"module-{name}-legacy.pt", saved(module, new=False), TRUST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripts = {"scripted": torch.jit.script(Net()), "traced": torch.jit.trace(Net(), torch.zeros(1, 2))}
        for name, script in scripts.items():
            buffer = io.BytesIO()
            torch.jit.save(script, buffer)
            yield single(GROUP, f"{name}.pt", buffer.getvalue(), TRUST)
        program = torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),))
        yield by_path(GROUP, "exported.pt2", lambda path: torch.export.save(program, path), NOT_BAD)

    def package(path: pathlib.Path) -> None:
        with torch.package.PackageExporter(path) as exporter:
            exporter.extern("**")
            exporter.save_pickle("model", "model.pkl", nn.Linear(2, 2))
            exporter.save_source_string("helper", "x = 1\n")

    yield by_path(GROUP, "package.pt", package, TRUST)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    yield single(GROUP, "whole-optimizer.pt", saved(optimizer), TRUST)


def values() -> Iterator[Item]:
    """Values of classes of the standard library that checkpoints hold."""
    things: dict[str, Any] = {
        "namespace": argparse.Namespace(lr=0.1, name="x"),
        "path": pathlib.PurePosixPath("a/b"),
        "partial": functools.partial(nn.LayerNorm, eps=1e-6),
        "function": nn.functional.relu,
        "class": Net,
        "numpy-generator": np.random.default_rng(1),
        "exception": ValueError("x"),
    }
    for name, thing in things.items():
        for protocol in (0, 2, 4):
            yield single(GROUP, f"{name}-{protocol}.pkl", pickle.dumps(thing, protocol), TRUST)
        yield single(GROUP, f"{name}.pt", saved({"epoch": 1, "x": thing}), TRUST)
    yield single(GROUP, "tensor-by-pickle.pkl", pickle.dumps({"w": torch.zeros(3)}), NOT_BAD)
    yield single(GROUP, "module-by-pickle.pkl", pickle.dumps(nn.Linear(2, 2)), TRUST)


def items() -> Iterator[Item]:
    """All of them."""
    torch.manual_seed(0)
    yield from estimators()
    yield from torch_objects()
    yield from values()
