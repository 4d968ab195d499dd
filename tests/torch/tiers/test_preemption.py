"""Tokens of requests that were sent away are those of an undisturbed run, whichever way their memory comes back."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.events import LoadFinished, RequestPreempted
from tiered import TieredService
from tiny_models import PAGE, plan_of, tight_plan

OUTPUTS = 40
MODELS = {"llama": 3, "gemma3_text": 6, "lfm2": 3}
"""Full; full and window; full and state: sheets beyond what the longest request needs."""


def prompts() -> list[np.ndarray]:
    random = np.random.default_rng(4)
    return [random.integers(3, 97, PAGE + 5 + 2 * place).astype(np.int32) for place in range(3)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_load", [True, False])
def test_tokens_after_a_preemption_are_those_of_a_cold_run(
    name: str, is_load: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies that cost nothing, or more than anything: the choice follows, and is told."""
    cold = TieredService(name, plan_of(name, batch_tokens=32))
    expected = [cold.ask(prompt, OUTPUTS, f"{place}").tokens().tolist() for place, prompt in enumerate(prompts())]
    service = TieredService(name, tight_plan(name, MODELS[name]))
    monkeypatch.setattr(service.stack, "seconds_to_load", lambda _: 0.0 if is_load else 1e9)
    service.engine.scheduler.admission.typical_output = 1.0
    streams = service.send(prompts(), OUTPUTS)
    service.engine.drain()
    assert [stream.tokens().tolist() for stream in streams] == expected
    sent = [event for event in service.events if isinstance(event, RequestPreempted)]
    assert sent, "nobody was sent away"
    assert all(event.way_back is not None and event.way_back.is_load is is_load for event in sent)
    returned = {event.request for event in sent} & {e.request for e in service.events if isinstance(e, LoadFinished)}
    assert bool(returned) is is_load
    for one in (cold, service):
        one.stack.close()
