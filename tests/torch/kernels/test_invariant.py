"""Results that do not depend on the batch, bit by bit: products, attention over pages, whole models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from paged_case import DEVICE, Heads, Pages, by_definition, rows_of

from device_models import DeviceService
from quire.core.errors import ModelError
from quire.worker.backends.attention import Scores
from quire.worker.backends.launch import Launch, attend, plan_invariant
from quire.worker.kernels import recorded, work
from quire.worker.kernels.product import product
from quire.worker.kernels.recorded import invariant_fits, invariant_work
from quire.worker.kernels.shape import LayerViews
from quire.worker.kernels.tiles import HeadShape
from quire.worker.kernels.work import QueryRows, Sight
from quire.worker.model.invariant import InvariantLinear, make_invariant, require_invariant
from quire.worker.pages.uploads import DirectUpload
from tiny_models import plan_of, reference

PROCESSORS = 4
COUNTS = (7, 64, 150, 300) if DEVICE.type == "cuda" else (7, 64)
"""The interpreter multiplies with a library that chooses by shape, so there a tile of one shape is compared."""
HEADS = Heads()
END = 75


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "INVARIANT_PIECE_TOKENS", 64)


@pytest.fixture
def _sums_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies tiles with numpy, whose library adds up in an order that depends on the processor and
    on where a row lies in its tile. Kernels on a GPU add up every row alike, and so does this."""
    monkeypatch.setattr(np, "matmul", lambda a, b, dtype: np.einsum("ij,jk->ik", a.astype(dtype), b.astype(dtype)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_right_and_the_same_alone_and_among_others(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tokens, weight = (torch.randn(count, 200).to(DEVICE, dtype) for count in (max(COUNTS), 72))
    bias = torch.randn(72).to(DEVICE, dtype)
    exact = tokens.double() @ weight.double().T + bias.double()
    alone = product(tokens[:1], weight, bias)
    assert float((alone - exact[:1]).norm() / exact[:1].norm()) < 1e-2
    for count in COUNTS:
        among = product(tokens[:count].view(1, count, -1), weight, bias)[0]
        assert float((among - exact[:count]).norm() / exact[:count].norm()) < 1e-2
        assert torch.equal(among[:1], alone)


def launched(pages: Pages, query: torch.Tensor, launch: Launch) -> torch.Tensor:
    out = torch.full_like(query, torch.nan)
    attend(query, LayerViews(pages.key, pages.value), pages.table, launch, Scores(0.25), out)
    return out


@pytest.mark.usefixtures("_sums_in_one_order")
@pytest.mark.parametrize("sight", [Sight(), Sight(window=19), Sight(chunk=32)])
def test_a_query_finds_the_same_alone_in_its_prompt_and_in_any_chunk_of_it(sight: Sight) -> None:
    torch.manual_seed(0)
    pages = Pages([END], HEADS)
    pages.fill()
    query, widths = torch.randn(END, HEADS.query, HEADS.width).to(DEVICE), HeadShape(4, 2, 16, 16, 4)
    expected = by_definition(pages, query, [END], [END], sight, Scores(0.25))
    whole = launched(
        pages, query, plan_invariant(DirectUpload(DEVICE), rows_of([END], [END]), sight, widths, PROCESSORS)
    )
    assert float((whole.double() - expected).norm() / expected.norm()) < 2e-6
    for first, count in ((0, 40), (40, 3), (43, 32), (63, 1), (64, 1), (74, 1)):
        rows = rows_of([count], [first + count])
        chunk = launched(
            pages, query[first : first + count], plan_invariant(DirectUpload(DEVICE), rows, sight, widths, PROCESSORS)
        )
        assert torch.equal(chunk, whole[first : first + count])
        if count == 1:
            played = plan_invariant(DirectUpload(DEVICE), rows, sight, widths, PROCESSORS, True)
            assert torch.equal(launched(pages, query[first : first + 1], played), chunk)


def test_recorded_pieces_have_a_given_length_and_one_size_of_launch() -> None:
    sizes = set()
    for positions in ((0, 0), (63, 64), (200, 3)):
        each = np.arange(2)
        rows = QueryRows(each, each, np.array(positions), np.ones_like(each))
        assert invariant_fits(rows, Sight(), PROCESSORS)
        made, slots = invariant_work(rows, Sight(), PROCESSORS, True)
        sizes.add((len(made.items), len(made.joins), slots))
        begins, ends = made.items[:, 4], made.items[:, 5]
        assert int((ends - begins).sum()) == sum(positions) + 2
        assert set((begins % 64).tolist()) == {0}
        assert made.slots <= slots
    assert len(sizes) == 1
    far = QueryRows(each, each, np.array([64 * 20 * recorded.INVARIANT_ITEMS, 0]), np.ones_like(each))
    assert not invariant_fits(far, Sight(), PROCESSORS)


def test_a_whole_model_yields_the_right_tokens() -> None:
    service = DeviceService("gemma3_text", plan_of("gemma3_text", batch_tokens=24), is_invariant=True, counts=(2,))
    service.check((0, 5), 3)
    assert service.runner.graphs is not None
    assert service.runner.graphs.played > 0


@pytest.mark.story
def test_a_lone_row_of_more_pieces_than_a_recording_has_room_for_runs_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorded, "INVARIANT_ITEMS", 0)
    monkeypatch.setattr(work, "INVARIANT_PIECE_TOKENS", 32)
    service = DeviceService("llama", plan_of("llama", batch_tokens=64), is_invariant=True, counts=(2,))
    service.check((5,), 4)
    assert service.runner.graphs is not None
    assert len(service.reference.prompts[5]) + 3 > work.INVARIANT_PIECE_TOKENS
    assert 0 < service.runner.graphs.played < 3


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("mixtral", "MixtralTopKRouter"),
        ("deepseek_v3", "kind latent"),
        ("lfm2", "kind state"),
        ("gemma3n_text", "altup_projections, altup_unembed_projections of Gemma3nForCausalLM"),
    ],
)
def test_what_is_computed_together_with_others_is_refused_by_name(name: str, what: str) -> None:
    with pytest.raises(ModelError, match=what):
        require_invariant(reference(name).model, plan_of(name, batch_tokens=8).stages[0])


@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "gemma4_text", "granite_swa", "phi3"]
)
def test_models_of_attention_and_plain_linear_layers_are_taken(name: str) -> None:
    require_invariant(reference(name).model, plan_of(name, batch_tokens=8).stages[0])


def test_every_product_is_replaced() -> None:
    linears = [torch.nn.Linear(4, 6), torch.nn.Linear(6, 2, bias=False)]
    model, tokens = torch.nn.Sequential(*linears).to(DEVICE), torch.randn(3, 4, device=DEVICE)
    expected = model(tokens)
    assert make_invariant(model) == 2
    assert torch.allclose(model(tokens), expected, atol=1e-6)
    assert all(isinstance(linear, InvariantLinear) for linear in linears)
