"""Scenario 11: what was stored and forgotten comes back byte by byte, and tokens after it are those of a cold run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from quire.core.dtypes import DType
from quire.core.events import LoadFailed, LoadFinished
from quire.core.step import Step
from quire.core.tier import Place, Store
from quire.movers.disk import SUFFIX, DiskFolder
from quire.plan.records import Records
from quire.worker.support.tiny import WINDOW
from tiered import MODELS, TieredService
from tiny_models import PAGE, plan_of

OUTPUTS = 4
LENGTHS = (PAGE + 1, 2 * PAGE, 2 * PAGE + 1, 3 * WINDOW, 4 * PAGE + 3)


def prompt_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 97, length).astype(np.int32)


GEOMETRIES: dict[str, tuple[str, dict[str, int], int]] = {
    **{what: (name, {"": PAGE}, PAGE) for name, what in MODELS.items()},
    "full and chunked": ("llama4_text", {"": PAGE}, PAGE),
    "full in pages of 16, window of 8": ("gemma3_text", {"full": 16, "window": 8}, PAGE),
    "full in pages of 8, window of 16": ("gemma3_text", {"full": 8, "window": 16}, PAGE),
    "a host block for each of two pages": ("gemma3_text", {"full": 8, "window": 16}, 8),
    "states alone": ("mamba2", {}, PAGE),
    "latents and their index": ("deepseek_v32", {"": PAGE}, PAGE),
    "latents, half with an index": ("glm_moe_dsa", {"": PAGE}, PAGE),
}
"""Model, tokens of its pages, tokens of a block of host memory."""


@pytest.mark.parametrize("what", GEOMETRIES)
def test_tokens_after_a_round_trip_through_host_memory_are_those_of_a_cold_run(what: str) -> None:
    """Each prompt is computed, forgotten and asked again, twice: all its whole units but the last token's come back."""
    name, pages, block_tokens = GEOMETRIES[what]
    plan = replace(plan_of(name, batch_tokens=32, pages=pages), host_block_tokens=block_tokens)
    assert plan.reuse_unit_tokens == PAGE
    service = TieredService(name, plan)
    for length in LENGTHS:
        prompt = prompt_of(length, length)
        cold = service.ask(prompt, OUTPUTS, f"cold {length} ").tokens().tolist()
        for again in range(2):
            service.drop_cache()
            service.events.clear()
            warm = service.ask(prompt, OUTPUTS, f"warm {length} {again} ")
            assert warm.tokens().tolist() == cold, f"length {length}"
            assert service.tokens(LoadFinished) == [(length - 1) // PAGE * PAGE], f"length {length}"
    service.stack.close()


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "deepseek_v3", "deepseek_v32"])
def test_pages_of_8_bits_come_back_as_they_were(name: str) -> None:
    """Keys and values with scales beside the arena, latents with theirs in the page."""
    service = TieredService(name, plan_of(name, batch_tokens=32, kv_dtype=DType.FP8))
    prompt = prompt_of(4 * PAGE + 5)
    cold = service.ask(prompt, OUTPUTS, "cold ").tokens().tolist()
    service.drop_cache()
    assert service.ask(prompt, OUTPUTS, "warm ").tokens().tolist() == cold
    assert service.tokens(LoadFinished) == [4 * PAGE]
    service.stack.close()


@pytest.mark.parametrize(
    "what", [what for what in GEOMETRIES if "full and" in what or "window" in what or "states" in what]
)
def test_a_talk_that_comes_back_goes_on_from_where_its_turn_ended_between_two_units(what: str) -> None:
    """Three turns, the cache forgotten before each: tokens are those of a talk that was never interrupted."""
    name, pages, block_tokens = GEOMETRIES[what]
    plan = replace(plan_of(name, batch_tokens=32, pages=pages), host_block_tokens=block_tokens)
    service, cold = TieredService(name, plan), TieredService(name, plan)
    talk, ended = prompt_of(2 * PAGE + 3), 0
    for turn, outputs in enumerate((5, 7, 3)):
        service.events.clear()
        answer = service.ask(talk, outputs, f"turn {turn} ").tokens()
        cold.engine.scheduler.reuse.index.drop()
        assert answer.tolist() == cold.ask(talk, outputs, f"{turn}: {what} ").tokens().tolist()
        assert service.tokens(LoadFinished) == ([ended] if turn else [])
        assert ended % PAGE or not turn
        ended = len(talk) + outputs - 1
        talk = np.concatenate([talk, answer, prompt_of(PAGE + 4, seed=turn)])
        service.drop_cache()
    service.stack.close()


@pytest.mark.parametrize("name", MODELS)
def test_every_byte_of_every_layer_comes_back_from_disk_into_other_pages(name: str, tmp_path: Path) -> None:
    """A second engine loads what the first one stored; each part of each layer is equal, token by token."""
    plan = plan_of(name, batch_tokens=32)
    prompt = prompt_of(4 * PAGE + 5)
    first, second = (TieredService(name, plan, [DiskFolder(tmp_path, 1 << 26)]) for _ in range(2))
    first.ask(prompt, 1, "cold ")
    first.stack.flush()
    second.ask(prompt_of(PAGE, seed=9), 1, "in the way ")
    second.ask(prompt, 1, "warm ")
    assert second.tokens(LoadFinished) == [4 * PAGE]
    for one, other in zip(cached(first), cached(second), strict=True):
        assert torch.equal(one, other)
    for service in (first, second):
        service.stack.close()


def cached(service: TieredService) -> list[torch.Tensor]:
    """Of the longest chain: what each part of each layer of growing kinds holds, in order."""
    index = service.engine.scheduler.reuse.index
    (memory,) = service.engine.scheduler.memories
    nodes = index.nodes
    chain = max((nodes.path(node) for _, node in nodes.items()), key=len)[:4]
    found = []
    for parts in service.runner.arena.layers.values():
        for part in parts.values():
            if memory.tables[part.kind].kind.grows:
                pages = memory.kept[part.kind].pages[chain][..., part.group].ravel()
                places = torch.from_numpy(memory.stage.addresses(part.kind, pages).astype(np.int64))
                found.append(part.pages(places).view(torch.uint8))
    assert found
    return found


def test_a_record_that_is_gone_shortens_the_load_to_what_every_kind_can_prove(tmp_path: Path) -> None:
    """Of five units the fourth is torn on disk: the load of all of them fails, the next brings those before it."""
    prompt = prompt_of(5 * PAGE + 2)
    first, second = (
        TieredService("llama", plan_of("llama", batch_tokens=32), [DiskFolder(tmp_path, 1 << 26)]) for _ in range(2)
    )
    cold = first.ask(prompt, OUTPUTS, "cold ").tokens().tolist()
    first.stack.flush()
    (waiting,) = first.send([prompt], 1, "keys ")
    keys = first.engine.scheduler.queue.find(waiting.request.name)
    assert keys is not None
    torn = next(tmp_path.rglob(f"*{keys.keys[3].hex()}{SUFFIX}"))
    torn.write_bytes(torn.read_bytes()[:-1])
    assert second.ask(prompt, OUTPUTS, "warm ").tokens().tolist() == cold
    assert second.tokens(LoadFailed) == [5 * PAGE]
    assert second.tokens(LoadFinished) == [3 * PAGE]
    for service in (first, second):
        service.stack.close()


def test_a_store_reads_its_pages_before_a_later_copy_writes_there() -> None:
    """Page 1 goes out, then page 0 is copied over it; another store behind the copy sees what it brought."""
    plan = plan_of("llama", batch_tokens=32)
    service = TieredService("llama", plan)
    arena, staging = service.runner.arena, service.runner.staging
    assert staging is not None
    size = Records(plan).unit_bytes
    arena.write(0, plan.stages[0].addresses(0, np.arange(2)).astype(np.int64), filled(size, 1, 2))
    places = [service.stack.accept(name, size) for name in (b"before", b"behind")]
    none, page = np.empty(0, dtype=np.int64), np.arange(2)
    stores = tuple(
        Store(place, ((0, 0, page[1:]),), after) for after, place in enumerate(places) if isinstance(place, Place)
    )
    copies = ((0, 0, page[:1], page[1:]),)
    step = Step(0, none, none, none, none.astype(bool), none, none.astype(np.int32), copies=copies, stores=stores)
    service.runner.launch(step)
    stored = [service.stack.held._memory.tensor[store.place.blocks[0], 0].item() for store in stores]
    assert stored == [2, 1]
    service.stack.close()


def filled(size: int, *values: int) -> torch.Tensor:
    return torch.stack([torch.full((size,), value, dtype=torch.uint8) for value in values])
