"""Hooks of layers: when they fire, their arguments, and their layers."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from max_weights.graph import Graph, TensorType
from max_weights.nn import Layer, LayerList, Module, Sequential, add_layer_hook, clear_hooks
from max_weights.nn.hooks import PrintHook
from module_trees import MLP
from refusals import refuses


class Add(Layer):
    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, x: int, y: int = 0, *rest: int, scale: int = 1, **more: int) -> int:  # noqa: ARG002
        return (x + y + self.amount) * scale


@pytest.fixture(autouse=True)
def _no_hooks_before_and_after() -> Iterator[None]:
    clear_hooks()
    yield
    clear_hooks()


@pytest.fixture
def calls() -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    add_layer_hook(lambda *call: found.append(call))
    return found


def test_a_hook_gets_layer_arguments_and_outputs(calls: list[tuple[Any, ...]]) -> None:
    layer = Add(1)
    assert layer(2) == 3
    assert calls == [(layer, (2,), {}, 3)]


def test_positional_parameters_given_by_keyword_arrive_in_args(calls: list[tuple[Any, ...]]) -> None:
    layer = Add(1)
    assert layer(y=5, x=2, scale=2, other=7) == 16
    layer(2, scale=2)
    layer(x=2)
    assert [call[1:3] for call in calls] == [((2, 5), {"scale": 2, "other": 7}), ((2,), {"scale": 2}), ((2,), {})]


def test_none_keeps_the_outputs_and_anything_else_replaces_them_for_later_hooks_too() -> None:
    seen: list[int] = []
    add_layer_hook(lambda *call: seen.append(call[3]))
    add_layer_hook(lambda *call: call[3] * 10)
    add_layer_hook(lambda *call: seen.append(call[3]))
    add_layer_hook(lambda *_: 0)
    assert Add(1)(2) == 0
    assert seen == [3, 30]


def test_inner_layers_fire_first(calls: list[tuple[Any, ...]]) -> None:
    model = MLP()
    model("x")
    assert [call[0] for call in calls] == [model.gate, model.up, model.down, model]


def test_one_call_fires_once_also_through_super(calls: list[tuple[Any, ...]]) -> None:
    class More(Add):
        def __call__(self, x: int) -> int:  # type: ignore[override]
            return super().__call__(x) + 100

    class Most(More):
        def __call__(self, x: int) -> int:  # type: ignore[override]
            return super().__call__(x) + 1000

    layer = Most(1)
    assert layer(2) == 1103
    assert calls == [(layer, (2,), {}, 1103)]


def test_a_call_that_is_inherited_fires(calls: list[tuple[Any, ...]]) -> None:
    class Same(Add):
        pass

    Same(1)(2)
    assert len(calls) == 1


def test_a_call_of_a_class_beside_the_layers_fires_once(calls: list[tuple[Any, ...]]) -> None:
    class Twice:
        def __call__(self, x: int) -> int:
            return 2 * x

    class Before(Twice, Layer):
        pass

    class After(Add, Twice):
        pass

    class Below(Before):
        pass

    class Over(Before):
        def __call__(self, x: int) -> int:
            return super().__call__(x) + 1

    class Other(Twice):
        def __call__(self, x: int) -> int:
            return 10 * x

    class Diamond(Before, Other):  # Other comes before Twice
        pass

    for layer, output in ((Before(), 8), (After(1), 5), (Below(), 8), (Over(), 9), (Diamond(), 40)):
        calls.clear()
        assert layer(4) == output
        assert [(call[0], call[3]) for call in calls] == [(layer, output)]
    calls.clear()
    assert Twice()(4) == 8
    assert calls == []
    assert Before()(x=4) == 8
    assert calls[0][1:3] == ((4,), {})


def test_a_layer_that_calls_itself_fires_for_each_call(calls: list[tuple[Any, ...]]) -> None:
    class Countdown(Layer):
        def __call__(self, x: int) -> int:
            return self(x - 1) if x else 0

    Countdown()(2)
    assert [call[1] for call in calls] == [((0,)), ((1,)), ((2,))]


def test_a_call_decorated_after_the_class_was_made_fires_once(calls: list[tuple[Any, ...]]) -> None:
    class Late(Add):
        def __call__(self, x: int) -> int:  # type: ignore[override]
            return super().__call__(x)

    before = Late.__call__

    @functools.wraps(before)
    def decorated(self: Late, x: int) -> int:
        return before(self, x) + 1

    Late.__call__ = decorated  # type: ignore[method-assign]
    assert Late(1)(2) == 4
    assert len(calls) == 1


def test_a_raising_hook_reaches_the_caller_and_a_raising_layer_no_hook(calls: list[tuple[Any, ...]]) -> None:
    class Broken(Layer):
        def __call__(self) -> None:
            raise OSError("broken")

    with refuses(OSError):
        Broken()()
    assert calls == []

    def refuse(*_call: Any) -> None:
        raise ValueError("refused")

    add_layer_hook(refuse)
    with refuses(ValueError):
        Add(1)(2)
    assert len(calls) == 1


def test_clear_hooks_removes_all(calls: list[tuple[Any, ...]]) -> None:
    clear_hooks()
    Add(1)(2)
    assert calls == []


def test_what_is_no_function_is_refused() -> None:
    with refuses(TypeError):
        add_layer_hook(3)  # type: ignore[arg-type]


def test_the_wrapped_call_keeps_name_doc_and_signature() -> None:
    import inspect

    assert Add.__call__.__name__ == "__call__"
    assert list(inspect.signature(Add.__call__).parameters) == ["self", "x", "y", "rest", "scale", "more"]


def test_hooks_see_the_calls_of_every_thread_and_task(calls: list[tuple[Any, ...]]) -> None:
    thread = threading.Thread(target=Add(1), args=(2,))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(Add(1), 3).result()

    async def task() -> None:
        Add(1)(4)

    asyncio.run(task())
    assert [call[1] for call in calls] == [(2,), (3,), (4,)]
    thread = threading.Thread(target=clear_hooks)
    thread.start()
    thread.join()
    Add(1)(5)
    assert len(calls) == 3


def test_hooks_that_threads_add_at_once_are_all_called() -> None:
    start, seen = threading.Barrier(8), []

    def work(number: int) -> None:
        start.wait()
        for _ in range(50):
            add_layer_hook(lambda *_: seen.append(number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Add(1)(1)
    assert sorted(seen) == sorted(list(range(8)) * 50)


def test_sequential_calls_one_after_the_other(calls: list[tuple[Any, ...]]) -> None:
    model = Sequential(Add(1), Add(10))
    assert model(5, scale=2) == 22
    assert [call[0] for call in calls] == [model[0], model[1], model]
    with refuses(ValueError, "argument.layer"):
        Sequential()(1)


class Many(Module):
    """Takes and returns several values."""

    def __call__(self, x: Any, *rest: Any, k: Any = None, **more: Any) -> Any:  # noqa: ARG002
        return x, [x], 3


class Around(Module):
    def __init__(self) -> None:
        self.up = Many()
        self.layers = LayerList([Many()])

    def __call__(self, x: Any) -> Any:
        self.layers[0](x)
        return self.up(x, [x], 3, k=x)[0]


def printed(model: Module) -> list[str]:
    """The labels printed by a graph of the model."""
    with Graph("g", input_types=[TensorType("float32", [2], "cpu")]) as graph:
        graph.output(model(*graph.inputs))
    return [node.attributes["label"] for node in graph.nodes if node.op == "print"]


def test_print_hook_records_the_printing_of_inputs_and_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    """The labels of MAX 26.7; only tensors are printed."""
    model = Around()
    hook = PrintHook()
    hook.name_layers(model)
    requested = [
        "model.layers.0-input_0", "model.layers.0-output_0",
        "model.up-input_0", "model.up-input_k", "model.up-output_0",
        "model-input_0", "model-output",
    ]  # fmt: skip
    assert printed(model) == requested
    hook.summarize()
    assert capsys.readouterr().out == "Printed 7 tensors for step 0.\n"
    hook.step()
    hook.remove()
    assert printed(model) == []
    hook.summarize()
    assert capsys.readouterr().out == "Printed 0 tensors for step 1.\n"


def test_print_hook_names_layers_by_their_classes_and_filters() -> None:
    hook = PrintHook()
    assert printed(Around())[:5] == [
        "Many-input_0",
        "Many-output_0",
        "Many2-input_0",
        "Many2-input_k",
        "Many2-output_0",
    ]
    hook.remove()
    model = Around()
    filtered = PrintHook(filter=["model.up"])
    filtered.name_layers(model)
    assert printed(model) == ["model.up-input_0", "model.up-input_k", "model.up-output_0"]


def test_print_hook_says_that_it_writes_no_files(caplog: pytest.LogCaptureFixture) -> None:
    PrintHook(export_path="folder")
    assert "does not write files, so nothing goes to folder" in caplog.text
