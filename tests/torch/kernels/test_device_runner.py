"""The runner for GPUs, on a CPU: kernels run under Triton's interpreter, recordings are run again instead of played."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from functools import partial
from inspect import signature
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from device_models import DeviceService
from examples import rest_in_soak
from quire.core.dtypes import DType
from quire.core.events import TokensDrafted
from quire.core.step import Step
from quire.worker.mixers import context
from quire.worker.steps import graphs
from quire.worker.steps.device_runner import DeviceRunner
from quire.worker.steps.runner import TorchRunner
from tiny_models import Service, plan_of

NAMES = ("gpt_oss", "deepseek_v3", "lfm2", "phi3 longrope", "llama4_text scaled")
"""Windows, sink logits and heads that share keys; latents; states; what transformers derives from a whole call."""
PLACES = (0, 5)
"""Prompts of one token, and longer than a window."""
OUTPUTS = 3
TRACED = {"llama": 2, "gemma3_text": 3}
"""Layers that differ, and the last norm."""
TRACES = [("llama", False), ("gemma3_text", False), ("llama", True)]
COMPILE = torch.compile


@pytest.mark.parametrize("name", rest_in_soak(NAMES, NAMES[:3]))
def test_steps_that_overlap_and_recorded_steps_yield_the_right_tokens(name: str) -> None:
    service = DeviceService(name, plan_of(name, batch_tokens=24), counts=(3,))
    service.check(PLACES, OUTPUTS)
    assert service.runner.graphs is not None
    assert service.runner.graphs.played > 0


def test_a_step_takes_one_path_on_every_device() -> None:
    """The runner for GPUs replaces parts of a launch, never their order, and is made from the same parts."""
    assert DeviceRunner.launch is TorchRunner.launch
    assert DeviceRunner.skip is TorchRunner.skip
    assert signature(DeviceRunner) == signature(TorchRunner)


@pytest.mark.parametrize("make", [TorchRunner, DeviceRunner])
def test_a_runner_is_complete_when_it_is_made(make: type[TorchRunner]) -> None:
    """Pages of a tier's host memory come with the other parts; a step that stores none asks for none."""
    runner, staging = Service("llama", plan_of("llama", batch_tokens=24)).runner, MagicMock()
    other = make(runner.plan, runner.model, runner.arena, staging=staging)
    nobody = np.empty(0, dtype=np.int64)
    other.launch(Step(7, nobody, nobody, nobody, nobody.astype(np.bool_), nobody, nobody.astype(np.int32)))
    staging.before_rows.assert_called_once()
    staging.store.assert_not_called()
    result = other.collect()
    assert (result.number, result.tokens.tolist()) == (7, [])


def test_tokens_over_8_bits_are_those_of_the_reference_backend_over_the_same() -> None:
    """Sink logits, windows and experts, in fp32: nothing else is rounded, so the same experts are chosen."""
    plan = plan_of("gpt_oss", batch_tokens=24, kv_dtype=DType.FP8)
    there, here = Service("gpt_oss", plan), DeviceService("gpt_oss", plan, counts=(2,))
    expected = there.send([there.reference.prompts[place] for place in PLACES], OUTPUTS)
    streams = here.send(PLACES, OUTPUTS)
    for engine in (there.engine, here.engine):
        engine.drain()
    tokens = [stream.tokens().tolist() for stream in streams]
    assert tokens == [stream.tokens().tolist() for stream in expected]
    assert tokens != [here.reference.tokens[place][:OUTPUTS] for place in PLACES], "8 bits make a difference"


@pytest.mark.parametrize("draft", ["lfm2", pytest.param("llama", marks=pytest.mark.soak)])
def test_guesses_of_a_draft_model_change_no_token(draft: str) -> None:
    """A model with states; its twin guesses what comes true, another one remembers in fewer ways and is wrong."""
    plan = plan_of("lfm2", batch_tokens=24, lookahead=2, draft=draft)
    service = DeviceService("lfm2", plan, counts=(2,), draft=draft)
    service.check(PLACES, OUTPUTS)
    drafted, accepted = (service.engine.counters.sums[TokensDrafted, told] for told in ("drafted", "accepted"))
    assert drafted > 0
    assert draft != "lfm2" or accepted == drafted


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it imports its compiler
@pytest.mark.parametrize(("name", "is_invariant"), rest_in_soak(TRACES, TRACES[1:]))
def test_a_traced_model_yields_the_right_tokens(name: str, is_invariant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced whole, without graph breaks, once for all layers that are alike, and run as it is: what the compiler makes
    of it is tested on a GPU."""
    traced: list[torch.fx.GraphModule] = []
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=_noting(traced), fullgraph=True))
    torch._dynamo.reset()
    plan = plan_of(name, batch_tokens=24)
    service = DeviceService(name, plan, is_compiled=True, counts=(2,), is_invariant=is_invariant)
    service.check(PLACES[:2], 2)
    assert len(traced) <= TRACED[name]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it imports its compiler
def test_a_single_row_is_recorded_with_compiled_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are traced for one token as well. Red: a recording of one row in which layers run eagerly, some twenty small
    launches each."""
    shapes: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor], **_options: object) -> object:
        shapes.extend(one.shape[1] for one in inputs if isinstance(one, torch.Tensor) and one.dim() == 3)
        return module.forward

    monkeypatch.setattr(torch, "compile", partial(COMPILE, backend=backend, fullgraph=True))
    torch._dynamo.reset()
    service = DeviceService("llama", plan_of("llama", batch_tokens=24), is_compiled=True, counts=(1, 2))
    assert 1 in shapes
    service.check(PLACES[:1], 3)
    assert service.runner.graphs is not None
    assert service.runner.graphs.played


@pytest.mark.story
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it imports its compiler
def test_what_is_traced_is_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's cache is asked for the text of the graph: a place in memory among its constants is never found."""
    texts, services = list[list[str]](), list[DeviceService]()
    for _process in range(2):
        traced: list[torch.fx.GraphModule] = []
        monkeypatch.setattr(context, "_numbers", itertools.count(1), raising=False)
        monkeypatch.setattr(torch, "compile", partial(COMPILE, backend=_noting(traced), fullgraph=True))
        torch._dynamo.reset()
        services.append(DeviceService("llama", plan_of("llama", batch_tokens=24), is_compiled=True, counts=(2,)))
        texts.append([str(module.code) for module in traced])
    assert any("quire.attend" in text for text in texts[0])
    assert texts[0] == texts[1]


def _noting(traced: list[torch.fx.GraphModule]) -> Callable[..., object]:
    def backend(module: torch.fx.GraphModule, _inputs: object, **_options: object) -> object:
        traced.append(module)
        return module.forward

    return backend


def test_nothing_is_collected_while_a_step_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that is let go meanwhile would spoil it. Without a GPU, what CUDA has to say is left out."""
    for name in ("Stream", "stream", "graph", "CUDAGraph", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(graphs, "borrow", lambda tensor: tensor)
    was_collecting: list[bool] = []

    def action() -> graphs.GraphOutput:
        was_collecting.append(gc.isenabled())
        return graphs.GraphOutput(torch.zeros(1), torch.zeros(1))

    graphs.record(action, pool=None)
    assert was_collecting == [True] * graphs.WARM_UPS + [False]
    assert gc.isenabled()
