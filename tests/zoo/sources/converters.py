"""Models of scikit-learn, LightGBM: by skl2onnx, onnxmltools and hummingbird."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.zoo.recipes import Recipe
from tests.zoo.sources import exporting

FEATURES = 6


def _data() -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(0)
    values = random.standard_normal((80, FEATURES)).astype(np.float32)
    return values, (values[:, 0] + values[:, 1] * values[:, 2] > 0).astype(np.int64)


def _estimator(module: str, name: str, **settings: Any) -> Callable[[], Any]:
    def make() -> Any:
        import importlib

        return getattr(importlib.import_module(module), name)(**settings)

    return make


def _pipeline() -> Any:
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    return make_pipeline(
        StandardScaler(), PolynomialFeatures(), PCA(4), LogisticRegression(max_iter=500)
    )


ESTIMATORS: Mapping[str, Callable[[], Any]] = {
    "logistic_regression": _estimator("sklearn.linear_model", "LogisticRegression"),
    "linear_regression": _estimator("sklearn.linear_model", "LinearRegression"),
    "svc": _estimator("sklearn.svm", "SVC", probability=True),
    "svr": _estimator("sklearn.svm", "SVR"),
    "decision_tree": _estimator("sklearn.tree", "DecisionTreeClassifier", max_depth=4),
    "random_forest": _estimator("sklearn.ensemble", "RandomForestClassifier", n_estimators=60),
    "gradient_boosting": _estimator("sklearn.ensemble", "GradientBoostingRegressor"),
    "isolation_forest": _estimator("sklearn.ensemble", "IsolationForest", n_estimators=20),
    "mlp": _estimator("sklearn.neural_network", "MLPClassifier", max_iter=20),
    "naive_bayes": _estimator("sklearn.naive_bayes", "GaussianNB"),
    "k_neighbours": _estimator("sklearn.neighbors", "KNeighborsClassifier"),
    "k_means": _estimator("sklearn.cluster", "KMeans", n_clusters=3, n_init=1),
    "gaussian_process": _estimator("sklearn.gaussian_process", "GaussianProcessRegressor"),
    "quantile_transform": _estimator("sklearn.preprocessing", "KBinsDiscretizer", encode="ordinal"),
    "pipeline": _pipeline,
}
BOOSTED: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "lightgbm": ("convert_lightgbm", _estimator("lightgbm", "LGBMClassifier", n_estimators=20)),
}
BY_HUMMINGBIRD = ("decision_tree", "random_forest", "logistic_regression", "mlp", "pipeline")


def recipes() -> Iterator[Recipe]:
    """Each estimator by skl2onnx, boosted trees by onnxmltools, some by hummingbird."""
    for name, make in ESTIMATORS.items():
        yield Recipe(f"{name}.skl2onnx", "skl2onnx", partial(_skl2onnx, make))
    for name, (convert, make) in BOOSTED.items():
        yield Recipe(f"{name}.onnxmltools", "onnxmltools", partial(_onnxmltools, convert, make))
    for name in BY_HUMMINGBIRD:
        make = partial(_hummingbird, ESTIMATORS[name])
        yield Recipe(f"{name}.hummingbird", "hummingbird", make)


def _skl2onnx(make: Callable[[], Any], folder: Path) -> None:
    import skl2onnx

    values, labels = _data()
    opsets = {"": 18, "ai.onnx.ml": 3}
    made = skl2onnx.to_onnx(make().fit(values, labels), values[:1], target_opset=opsets)
    (folder / "model.onnx").write_bytes(made.SerializeToString())


def _onnxmltools(convert: str, make: Callable[[], Any], folder: Path) -> None:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    values, labels = _data()
    types = [("values", FloatTensorType([None, FEATURES]))]
    made = getattr(onnxmltools, convert)(
        make().fit(values, labels), initial_types=types, target_opset=15
    )
    (folder / "model.onnx").write_bytes(made.SerializeToString())


def _hummingbird(make: Callable[[], Any], folder: Path) -> None:
    """Trees and pipelines as tensor operations: hummingbird's torch module, exported by torch."""
    from hummingbird.ml import convert

    values, labels = _data()
    module = convert(make().fit(values, labels), "torch").model

    def made() -> tuple[Any, tuple[Any, ...]]:
        import torch

        return module, (torch.from_numpy(values[:1]),)

    exporting.export(made, "script", folder)
