"""Latent and recurrent layers generate what transformers generates, whatever happens to their memory."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from mixer_models import CONFIGS, OUTPUTS, RELATIVES, Case, make_case

from drafters import Reminded
from examples import rest_in_soak
from quire.core.drafting import Drafter
from quire.core.dtypes import DType
from quire.core.errors import ModelError
from quire.core.events import Event, PagesCompacted, RequestAdmitted, RequestPreempted, TokensDrafted
from quire.core.request import Request
from quire.core.step import Step
from quire.engine.engine import Engine
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.worker.backends.attention import for_each_reading
from quire.worker.backends.batch import KindBatch
from quire.worker.mixers import latent
from quire.worker.model.model import TorchModel
from quire.worker.pages.arena import Arena
from quire.worker.steps.runner import TorchRunner

PAGE = 16
WHOLE = 512
"""More tokens than all prompts have together."""
TOLERANCE = 1e-4
OF_ONE_KIND = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "mamba2")
VARIED = ("qwen3_next", "jamba", "kimi_linear")
"""States and full attention, experts, latents: these are tried in more ways at each run, the others in `make soak`."""
PAGES = ((4,), (1, 2, 4, 8))
"""Tokens of a page that moves."""
DEFAULT_PAGES: Mapping[str, int] = MappingProxyType({})


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


class Listening(TorchRunner):
    """Remembers the logits behind every token, by request and number of the token."""

    def __init__(self, plan: Plan, model: TorchModel, arena: Arena) -> None:
        super().__init__(plan, model, arena)
        self.names: dict[int, str] = {}
        self.heard: dict[tuple[str, int], torch.Tensor] = {}

    def launch(self, step: Step) -> None:
        self.names.update({row: request.name for row, request, *_ in step.entered})
        super().launch(step)

    def sample(self, step: Step, logits: torch.Tensor) -> torch.Tensor:
        """Behind a guess that did not come true, what is heard later counts."""
        entries, _, ends = step.sample_places()
        names = [self.names[int(row)] for row in step.rows[entries]]
        self.heard.update(zip(zip(names, ends.tolist(), strict=True), logits.clone(), strict=True))
        return super().sample(step, logits)


class System:
    """An engine over poisoned memory that is sent the case's prompts."""

    def __init__(self, case: Case, plan: Plan, overlap: int, drafter: Drafter | None = None) -> None:
        arena = Arena(plan.stages[0], torch.device("cpu"))
        arena.bytes.view(torch.float32).fill_(float("nan"))
        self.case = case
        self.seen: Counter[type[Event]] = Counter()
        self.hit_tokens = 0
        self.moved: Counter[str] = Counter()
        self.runner = Listening(plan, TorchModel(case.model, arena), arena)
        self.engine = Engine(plan, self.runner, drafter=drafter, overlap=overlap, listeners=[self._hear])

    def _hear(self, event: Event) -> None:
        self.seen[type(event)] += 1
        self.hit_tokens += event.numbers.get("hit_tokens", 0) if isinstance(event, RequestAdmitted) else 0
        if isinstance(event, PagesCompacted):
            self.moved[event.kind] += event.pages

    def drain(self) -> None:
        self.engine.drain()

    def send_all(self, turn: str = "first", outputs: Sequence[int] = 8 * (OUTPUTS,)) -> None:
        """All prompts at once; then tokens are equal, and logits near."""
        expected = {f"{turn} {number}": one for number, one in enumerate(self.case.expected)}
        asked = dict(zip(expected, outputs, strict=True))
        streams = {name: self.engine.submit(Request(name, one.prompt, asked[name])) for name, one in expected.items()}
        self.runner.heard.clear()
        self.drain()
        assert {name: stream.tokens().tolist() for name, stream in streams.items()} == {
            name: one.tokens[: asked[name]] for name, one in expected.items()
        }
        for name, one in expected.items():
            for place, logits in enumerate(one.logits[: asked[name]]):
                heard = self.runner.heard[name, len(one.prompt) + place]
                torch.testing.assert_close(heard, logits, rtol=0, atol=TOLERANCE)


def plan_for(
    case: Case, chunk: int, sheets: int | None = None, lookahead: int = 0, pages: Mapping[str, int] = DEFAULT_PAGES
) -> Plan:
    settings = Settings(
        max_length=80, max_requests=8, batch_tokens=chunk, kv_dtype=DType.FP32, match_unit_tokens=PAGE,
        speculative_tokens=lookahead, page_tokens=pages,
    )  # fmt: skip
    shape = replace(case.shape, draft_layers=())
    return make_plan(shape, settings, Budget(pool_bytes=4 << 20) if sheets is None else Budget(sheets=(sheets,)))


def smallest_plan(case: Case, lookahead: int = 0) -> Plan:
    plans = (plan_for(case, WHOLE, sheets, lookahead) for sheets in count(1))
    return next(plan for plan in plans if not plan.problem)


CUTS = ((1, 2), (7, 1), (PAGE, 2), (WHOLE, 1))
"""Tokens of a step, and steps in flight."""


@pytest.mark.parametrize(
    ("case", "chunk", "overlap"),
    rest_in_soak(
        [(name, *cut) for name in CONFIGS for cut in CUTS],
        [
            *((name, 7, 1) for name in CONFIGS),
            *((name, *cut) for name in VARIED for cut in CUTS[2:]),
            (VARIED[0], 1, 2),
        ],
    ),
    indirect=["case"],
)
def test_tokens_equal_those_of_transformers_however_prompts_are_cut(case: Case, chunk: int, overlap: int) -> None:
    System(case, plan_for(case, chunk), overlap).send_all()


def test_tokens_stay_equal_when_prefixes_are_found_again(case: Case) -> None:
    system = System(case, plan_for(case, WHOLE), overlap=2)
    system.send_all()
    before = system.hit_tokens
    system.send_all("second")
    assert system.hit_tokens - before >= 3 * PAGE


def test_tokens_stay_equal_in_the_smallest_pool(case: Case) -> None:
    """Rows that grow are preempted there; a state alone never grows."""
    system = System(case, smallest_plan(case), overlap=2)
    system.engine.scheduler.admission.typical_output = 1
    system.send_all()
    grows = any(kind.kind.grows for kind in system.runner.plan.stages[0].kinds)
    assert (system.seen[RequestPreempted] > 0) == grows


class Gathering(System):
    """Forgets every prefix and gathers what is left before each step, whether anyone is short of a sheet or not."""

    def drain(self) -> None:
        room = self.engine.scheduler.room
        while self.engine.step():
            room.index.evict(sys.maxsize, must=False)
            room.compact()


@pytest.mark.parametrize(
    ("name", "sizes"),
    rest_in_soak(
        [(name, sizes) for name in CONFIGS if name not in OF_ONE_KIND for sizes in PAGES],
        [(name, PAGES[0]) for name in VARIED],
    ),
)
def test_tokens_stay_equal_when_pages_are_moved_together(name: str, sizes: tuple[int, ...]) -> None:
    """Requests end one after the other and leave holes; pages of every kind are moved under those that go on. Where
    all layers are of one kind, no sheet is wanted by another, and nothing is ever moved."""
    case = make_case(name)
    kinds = plan_for(case, WHOLE).stages[0].kinds
    moved: Counter[str] = Counter()
    for tokens in sizes:
        pages = {kind.name: tokens for kind in kinds if kind.kind.grows}
        system = Gathering(case, plan_for(case, 2 * PAGE, sheets=64, pages=pages), overlap=2)
        system.send_all(outputs=range(1, OUTPUTS + 1))
        moved += system.moved
    assert set(moved) == {kind.name for kind in kinds}


def reminded(case: Case) -> Reminded:
    return Reminded([np.append(one.prompt, one.tokens) for one in case.expected])


@pytest.mark.parametrize(
    ("case", "chunk", "overlap"),
    rest_in_soak(
        [(name, *cut) for name in CONFIGS for cut in ((7, 2), (WHOLE, 1), (WHOLE, 2))],
        [*((name, 7, 2) for name in CONFIGS), *((name, WHOLE, 1) for name in VARIED)],
    ),
    indirect=["case"],
)
def test_tokens_stay_equal_with_guesses(case: Case, chunk: int, overlap: int) -> None:
    """A state that read a wrong guess is not gone on from."""
    system = System(case, plan_for(case, chunk, lookahead=3), overlap, reminded(case))
    system.send_all()
    system.send_all("second")
    sums = system.engine.counters.sums
    assert 0 < sums[TokensDrafted, "accepted"] < sums[TokensDrafted, "drafted"]


def test_tokens_stay_equal_with_guesses_in_the_smallest_pool(case: Case) -> None:
    system = System(case, smallest_plan(case, lookahead=3), overlap=2, drafter=reminded(case))
    system.engine.scheduler.admission.typical_output = 1
    system.send_all()
    assert system.engine.counters.sums[TokensDrafted, "accepted"] > 0


@pytest.mark.parametrize("name", RELATIVES)
def test_relatives_yield_what_transformers_yields(name: str) -> None:
    case = make_case(name)
    System(case, plan_for(case, 7), overlap=2).send_all()


def test_a_layer_that_nothing_here_runs_is_refused_by_name() -> None:
    case = copy.deepcopy(make_case("lfm2"))
    layer = case.model.model.layers[2].conv
    layer.__class__ = type("Unheard", (type(layer),), {})
    with pytest.raises(ModelError, match="layer 2 keeps conv, and nothing here runs Unheard"):
        System(case, plan_for(case, WHOLE), overlap=1)


INDEXED = ("deepseek_v32", "glm_moe_dsa")


@pytest.mark.parametrize("name", INDEXED)
def test_a_query_reads_as_many_tokens_as_its_index_selects(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens up to 9, then 9. A layer without an indexer reads what the layer before it selected."""
    case, batches = make_case(name), list[KindBatch]()

    def watched(kind: KindBatch, *others: Any) -> torch.Tensor:
        batches.append(kind)
        return for_each_reading(kind, *others)

    monkeypatch.setattr(latent, "for_each_reading", watched)
    System(case, plan_for(case, WHOLE), overlap=1).send_all()
    masks = [reading.mask for batch in batches for reading in batch.readings if reading.mask is not None]
    assert len(masks) == sum(len(batch.readings) for batch in batches)
    assert {read for mask in masks for read in mask.sum(dim=-1).flatten().tolist()} == set(range(1, 10))
    assert {first is second for first, second in zip(batches[::2], batches[1::2], strict=True)} == {name == INDEXED[1]}


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("top", [1, 33, 512])
def test_tokens_equal_those_of_transformers_however_many_an_index_selects(name: str, top: int) -> None:
    """One token, more than a chunk, and more than any request has; the second time with prefix hits."""
    case = make_case(name, index_topk=top)
    system = System(case, plan_for(case, 7), overlap=2)
    system.send_all()
    system.send_all("second")
    assert system.hit_tokens >= 3 * PAGE


def test_an_indexer_without_index_keys_in_the_plan_is_refused() -> None:
    case = make_case("deepseek_v32")
    layers = list(case.shape.layers)
    (memory,) = layers[1].memories
    layers[1] = replace(layers[1], memories=(replace(memory, parts=memory.parts[:-1]),))
    bare = replace(case, shape=replace(case.shape, layers=tuple(layers)))
    with pytest.raises(ModelError, match="layer 1 has an indexer, and the plan keeps no index keys there"):
        System(bare, plan_for(bare, WHOLE), overlap=1)


def test_layers_with_an_index_are_not_compiled() -> None:
    """They pass their selection to attention as an object, which compiled layers could not."""
    case = make_case("glm_moe_dsa")
    arena = Arena(plan_for(case, WHOLE).stages[0], torch.device("cpu"))
    assert not TorchModel(case.model, arena, is_compiled=True).context.is_compiled
