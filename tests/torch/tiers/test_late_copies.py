"""Copies that go on beside the steps, as on a GPU, each as late as it may be: nobody sees a byte too early."""

from __future__ import annotations

from random import Random
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from by_hand import Chunk, make_by_hand
from late import LateCopies, make_late
from quire.check.promises import check_nothing_left
from quire.core.events import LoadFinished
from quire.engine.engine import Stream
from quire.worker.pages.copies import Pieces
from quire.worker.pages.staging import Staging, places
from quire.worker.support.tiny import tiny_config
from tiered import MODELS, TieredService
from tiny_models import PAGE, Service, plan_of, tight_plan

OUTPUTS = 3
SHEETS = {"llama": 3, "gemma3_text": 6, "lfm2": 3, "deepseek_v3": 3}
"""Beyond what the longest request needs: what is kept gives way again and again."""


def talk_of(talk: int, tokens: int) -> np.ndarray:
    return np.random.default_rng(talk).integers(3, 97, 90).astype(np.int32)[:tokens]


class Expected:
    """What an engine without tiers yields, prompt by prompt."""

    def __init__(self, name: str) -> None:
        self._service = Service(name, plan_of(name, batch_tokens=32))
        self._known: dict[bytes, list[int]] = {}

    def of(self, prompt: np.ndarray) -> list[int]:
        if prompt.tobytes() not in self._known:
            (stream,) = self._service.send([prompt], OUTPUTS, f"{len(self._known)} ")
            self._service.engine.drain()
            self._known[prompt.tobytes()] = stream.tokens().tolist()
        return self._known[prompt.tobytes()]


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_right_however_late_copies_are(name: str) -> None:
    """Requests of five talks come and go in a pool for little more than one of them; a third is cancelled on the way,
    some while their load is being copied. Most of the time no copy is done unless a step needs its pages."""
    random, expected = Random(1), Expected(name)
    service = TieredService(name, tight_plan(name, SHEETS[name]))
    copies = make_late(service)
    running: list[tuple[np.ndarray, Stream]] = []
    for number in range(40):
        copies.gate.clear() if number % 4 else copies.gate.set()
        prompt = talk_of(random.randrange(5), random.choice((PAGE + 5, 2 * PAGE + 1, 3 * PAGE + 7, 60)))
        (stream,) = service.send([prompt], OUTPUTS, f"{number} ")
        running.append((prompt, stream))
        for _ in range(random.randrange(8)):
            service.engine.step()
        if random.random() < 0.3:
            service.engine.cancel(running.pop(random.randrange(len(running)))[1].request.name)
    copies.gate.set()
    service.engine.drain()
    for prompt, stream in running:
        assert stream.tokens().tolist() == expected.of(prompt)
    service.stack.flush()
    assert not service.stack.loads._open
    assert not len(service.stack.stores)
    check_nothing_left(service.engine.scheduler)
    assert service.tokens(LoadFinished)
    assert copies.forced, "no step ever needed a page that was being copied"
    service.stack.close()


def test_a_load_that_is_being_copied_when_its_request_is_gone_touches_nobody() -> None:
    """Scenario 10: the copy stands still, its request is cancelled, and the next one is given the same pages: it waits
    for the copy there, on the device, and computes its own tokens."""
    service, expected = TieredService("llama", tight_plan("llama", 0)), Expected("llama")
    copies = make_late(service)
    service.ask(talk_of(0, 60), OUTPUTS, "cold ")
    service.stack.flush()
    service.drop_cache()
    copies.gate.clear()
    (gone,) = service.send([talk_of(0, 60)], OUTPUTS, "gone ")
    while not any(one.copied_since is not None for one in service.stack.loads._open.values()):
        service.engine.step()
    service.engine.cancel(gone.request.name)
    service.engine.drain()
    check_nothing_left(service.engine.scheduler)
    other = service.ask(talk_of(1, 60), OUTPUTS, "other ")
    assert other.tokens().tolist() == expected.of(talk_of(1, 60))
    assert copies.forced
    assert service.stack.loads._open, "its blocks are its own until the copy is over"
    copies.gate.set()
    service.stack.flush()
    assert not service.stack.loads._open
    service.stack.close()


def test_others_go_on_while_a_load_is_being_copied() -> None:
    service, expected = TieredService("llama", plan_of("llama", batch_tokens=32)), Expected("llama")
    copies = make_late(service)
    service.ask(talk_of(0, 60), OUTPUTS, "cold ")
    service.stack.flush()
    service.drop_cache()
    copies.gate.clear()
    (loading,) = service.send([talk_of(0, 60)], OUTPUTS, "loading ")
    (other,) = service.send([talk_of(1, 20)], OUTPUTS, "other ")
    while other.ended is None:
        service.engine.step()
    assert other.tokens().tolist() == expected.of(talk_of(1, 20))
    assert not len(loading.tokens())
    assert service.tokens(LoadFinished) == []
    copies.gate.set()
    service.engine.drain()
    assert loading.tokens().tolist() == expected.of(talk_of(0, 60))
    assert service.tokens(LoadFinished) == [3 * PAGE]
    service.stack.close()


def test_a_capture_waits_for_a_copy_of_its_page() -> None:
    """A page that goes out to host memory is read before a captured state is written there. Red if only the pages of
    rows are waited for."""
    rows = make_by_hand("lfm2", tiny_config("lfm2"))()
    row, pages = rows.enter(talk_of(0, 20)), rows.pages()
    size, begin = rows.stage.kinds[rows.kind].page_bytes, int(places(rows.stage, rows.kind, pages)[0])
    host, before = torch.zeros(size, dtype=torch.uint8), rows.arena.bytes[begin : begin + size].clone()
    copies = LateCopies(rows.arena.bytes, host, rows.stage.sheet_bytes)
    rows.runner.staging = Staging(rows.plan, copies, MagicMock())
    copies.out(Pieces(*(np.array([number]) for number in (begin, 0, size))))
    rows.run(Chunk(row, 0, 10))
    assert not copies.forced
    rows.run(Chunk(row, 10, 10, [(15, pages)]))
    assert copies.forced == 1
    assert torch.equal(host, before)
    assert not torch.equal(rows.arena.bytes[begin : begin + size], before)
