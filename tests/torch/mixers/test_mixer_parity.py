"""Latent and recurrent layers yield what transformers yields, whatever the memory under them goes through."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType

import numpy as np
import pytest
import torch
from mixer_models import CONFIGS, OUTPUTS, RELATIVES, Case, make_case

from drafters import Reminded
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
from quire.worker.arena import Arena
from quire.worker.model import TorchModel
from quire.worker.runner import TorchRunner

PAGE = 16
WHOLE = 512
"""More tokens than all prompts have together."""
TOLERANCE = 1e-4
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

    def sample(self, step: Step, logits: torch.Tensor) -> np.ndarray:
        """Behind a guess that did not come true, what is heard later counts."""
        entries, _, ends = step.sampled()
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


@pytest.mark.parametrize(("chunk", "overlap"), [(1, 2), (7, 1), (PAGE, 2), (WHOLE, 1)])
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
    system.engine.scheduler.typical_output = 1
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


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in ("deepseek_v2", "deepseek_v3", "mamba2")])
def test_tokens_stay_equal_when_pages_are_moved_together(name: str) -> None:
    """Requests end one after the other and leave holes; pages of every kind are moved under those that go on. Where
    all layers are of one kind, no sheet is wanted by another, and nothing is ever moved."""
    case = make_case(name)
    kinds = plan_for(case, WHOLE).stages[0].kinds
    moved: Counter[str] = Counter()
    for tokens in (1, 2, 4, 8):
        pages = {kind.name: tokens for kind in kinds if kind.kind.grows}
        system = Gathering(case, plan_for(case, 2 * PAGE, sheets=64, pages=pages), overlap=2)
        system.send_all(outputs=range(1, OUTPUTS + 1))
        moved += system.moved
    assert set(moved) == {kind.name for kind in kinds}


def reminded(case: Case) -> Reminded:
    return Reminded([np.append(one.prompt, one.tokens) for one in case.expected])


@pytest.mark.parametrize(("chunk", "overlap"), [(7, 2), (WHOLE, 1), pytest.param(WHOLE, 2, marks=pytest.mark.soak)])
def test_tokens_stay_equal_with_guesses(case: Case, chunk: int, overlap: int) -> None:
    """A state that read a wrong guess is not gone on from."""
    system = System(case, plan_for(case, chunk, lookahead=3), overlap, reminded(case))
    system.send_all()
    system.send_all("second")
    sums = system.engine.counters.sums
    assert 0 < sums[TokensDrafted, "accepted"] < sums[TokensDrafted, "drafted"]


def test_tokens_stay_equal_with_guesses_in_the_smallest_pool(case: Case) -> None:
    system = System(case, smallest_plan(case, lookahead=3), overlap=2, drafter=reminded(case))
    system.engine.scheduler.typical_output = 1
    system.send_all()
    assert system.engine.counters.sums[TokensDrafted, "accepted"] > 0


@pytest.mark.parametrize("name", RELATIVES)
def test_relatives_yield_what_transformers_yields(name: str) -> None:
    case = make_case(name)
    System(case, plan_for(case, 7), overlap=2).send_all()


def test_a_layer_that_nothing_here_runs_is_refused_by_name() -> None:
    case = make_case("lfm2")
    layer = case.model.model.layers[2].conv
    layer.__class__ = type("Unheard", (type(layer),), {})
    with pytest.raises(ModelError, match="layer 2 keeps conv, and nothing here runs Unheard"):
        System(case, plan_for(case, WHOLE), overlap=1)
