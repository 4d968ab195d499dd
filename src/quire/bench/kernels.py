"""Kernels on this GPU: attention over pages in random order, beside FlashInfer where it is installed, one run.

Each call is recorded in a CUDA graph; times are medians of replays, each between two events. Decode reads more than a
gigabyte, so that no replay finds its bytes in the cache. Results are compared with FlashInfer's before timing.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from quire.bench.experts import experts_table
from quire.bench.measure import DEVICE, microseconds, random_numbers
from quire.bench.packed import packed_table
from quire.bench.prompt_steps import step_microseconds
from quire.bench.recurrent import recurrent_table
from quire.bench.report import Report, Tell, about
from quire.worker.backends.attention import Scores
from quire.worker.backends.flashinfer_backend import available
from quire.worker.backends.launch import attend, plan
from quire.worker.kernels.pages import clear_pages, copy_pages, gather_pages
from quire.worker.kernels.shape import DeviceTable, LayerViews
from quire.worker.kernels.tiles import HeadShape
from quire.worker.kernels.work import QueryRows, Sight

LLAMA = HeadShape(32, 8, 128, 128, 2)
PAGE = 16
DECODE = ((8, 32_768), (64, 4_096), (128, 4_096), (256, 1_024), (512, 512))
PREFILL = ((4, 4_096), (1, 16_384))


class Pool:
    """Pages of one layer, (key, value) of PAGE tokens each, dealt to rows in random order."""

    def __init__(
        self,
        rows: int,
        columns: int,
        wraps: bool = False,
        widths: tuple[int, int] | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.granule = 256 // dtype.itemsize
        key, value = widths or (LLAMA.key * LLAMA.width, LLAMA.key * LLAMA.value_width)
        size, pages = PAGE * (key + value), rows * columns
        self.arena = torch.empty(pages * size, dtype=dtype, device=DEVICE)
        for part in self.arena.split(1 << 28):
            part.copy_(random_numbers(len(part)))
        self.order = np.random.default_rng(0).permutation(pages).astype(np.int32)
        addresses = torch.from_numpy((self.order * (size // self.granule)).reshape(rows, columns)).to(DEVICE)
        self.table = DeviceTable(addresses, PAGE, 0, wraps)
        self.places = (self.arena.numel() - size) // self.granule + 1
        heads = 1 if widths else LLAMA.key
        self.key, self.value = self._part(heads, key // heads, 0), self._part(heads, value // heads, PAGE * key)

    def _part(self, heads: int, width: int, offset: int) -> torch.Tensor:
        strides = (self.granule, heads * width, width, 1)
        return self.arena.as_strided((self.places, PAGE, heads, width), strides, offset)


def processors() -> int:
    return int(torch.cuda.get_device_properties(DEVICE).multi_processor_count)


def rows_of(rows: int, count: int, position: int) -> QueryRows:
    each = np.arange(rows)
    return QueryRows(each, each * count, np.full(rows, position), np.full(rows, count))


def attention(
    pool: Pool, rows: QueryRows, query: torch.Tensor, sight: Sight, heads: HeadShape
) -> tuple[Any, torch.Tensor]:
    """Something to time, and where it leaves its result."""
    launch = plan(rows, sight, heads, processors(), DEVICE)
    ones = torch.ones(heads.key, device=DEVICE) if heads.number_bytes == 1 else None
    memory = LayerViews(pool.key, pool.value, key_scales=ones, value_scales=ones)
    if heads.rope_width:
        memory = LayerViews.latent(pool.key, pool.value)
    out = torch.full((len(query), heads.query, heads.value_width), torch.nan, device=DEVICE, dtype=query.dtype)
    scores = Scores((heads.width + heads.rope_width) ** -0.5)
    return lambda: attend(query, memory, pool.table, launch, scores, out), out


class FlashInfer:
    """The peer, on the same pages: a page's index is its address divided by the page's size."""

    def __init__(self) -> None:
        self.library: Any = importlib.import_module("flashinfer")
        self.workspace = torch.empty(512 << 20, dtype=torch.uint8, device=DEVICE)

    def decode(self, pool: Pool, query: torch.Tensor, length: int) -> tuple[Any, torch.Tensor]:
        """On tensor cores, which is its faster way here."""
        way = self.library.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "NHD", use_tensor_cores=True)
        way.plan(*self._pages(pool, len(query), length), LLAMA.query, LLAMA.key, LLAMA.width, PAGE,
                 q_data_type=query.dtype, kv_data_type=query.dtype)  # fmt: skip
        return self._run(way, pool, query)

    def prefill(self, pool: Pool, query: torch.Tensor, rows: int, backend: str) -> tuple[Any, torch.Tensor]:
        length = len(query) // rows
        way = self.library.BatchPrefillWithPagedKVCacheWrapper(self.workspace, "NHD", backend=backend)
        begins = torch.arange(rows + 1, dtype=torch.int32, device=DEVICE) * length
        way.plan(begins, *self._pages(pool, rows, length), LLAMA.query, LLAMA.key, LLAMA.width, PAGE, causal=True,
                 q_data_type=query.dtype, kv_data_type=query.dtype)  # fmt: skip
        return self._run(way, pool, query)

    def _pages(self, pool: Pool, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        begins = torch.arange(rows + 1, dtype=torch.int32, device=DEVICE) * (length // PAGE)
        last = torch.full((rows,), PAGE, dtype=torch.int32, device=DEVICE)
        return begins, torch.from_numpy(pool.order).to(DEVICE), last

    def _run(self, way: Any, pool: Pool, query: torch.Tensor) -> tuple[Any, torch.Tensor]:
        pages, out = pool.arena.view(-1, 2, PAGE, LLAMA.key, LLAMA.width), torch.empty_like(query)
        return lambda: way.run(query, pages, out=out), out


def check(ours: tuple[Any, torch.Tensor], peers: tuple[Any, torch.Tensor]) -> None:
    for action, _ in (ours, peers):
        action()
    mine, expected = ours[1].float(), peers[1].float()
    error = float((mine - expected).norm() / expected.norm())
    if not error < 1e-2:
        raise SystemExit(f"results differ by {error:.2e} of their size: nothing is timed")


def decode_table(peer: FlashInfer | None) -> list[dict[str, object]]:
    table = []
    for rows, length in DECODE:
        pool = Pool(rows, length // PAGE)
        query = random_numbers(rows, LLAMA.query, LLAMA.width)
        read = rows * length * 2 * LLAMA.key * LLAMA.width * 2
        ours = attention(pool, rows_of(rows, 1, length - 1), query, Sight(), LLAMA)
        line: dict[str, object] = {"rows × tokens": f"{rows} × {length:,}"}
        theirs = None if peer is None else peer.decode(pool, query, length)
        if theirs is not None:
            check(ours, theirs)
        speed = {"Quire, TB/s": read / microseconds(ours[0]) / 1e6}
        if theirs is not None:
            peers = read / microseconds(theirs[0]) / 1e6
            speed = {"FlashInfer, TB/s": peers, **speed, "ratio": speed["Quire, TB/s"] / peers}
        table.append({**line, **{name: round(value, 2) for name, value in speed.items()}})
    return table


def fp8_table(_peer: FlashInfer | None) -> list[dict[str, object]]:
    """Decode over keys and values in 8 bits, beside the same in 16."""
    table: list[dict[str, object]] = []
    for rows, length in ((128, 4_096), (256, 1_024)):
        query, took = random_numbers(rows, LLAMA.query, LLAMA.width), []
        for dtype in (torch.bfloat16, torch.float8_e4m3fn):
            pool, heads = Pool(rows, length // PAGE, dtype=dtype), replace(LLAMA, number_bytes=dtype.itemsize)
            took.append(microseconds(attention(pool, rows_of(rows, 1, length - 1), query, Sight(), heads)[0]))
        read = rows * length * 2 * LLAMA.key * LLAMA.width
        table.append({"rows × tokens": f"{rows} × {length:,}", "bf16, µs": round(took[0], 1),
                      "fp8, µs": round(took[1], 1), "ratio": round(took[0] / took[1], 2),
                      "fp8, TB/s": round(read / took[1] / 1e6, 2)})  # fmt: skip
    return table


def window_table(_peer: FlashInfer | None) -> list[dict[str, object]]:
    """Rows at 32,768 tokens that hold no more than their window, beside rows of that length."""
    table: list[dict[str, object]] = []
    for rows in (64, 256):
        query = random_numbers(rows, LLAMA.query, LLAMA.width)
        full, ring = Pool(rows, 1_024 // PAGE), Pool(rows, 1_024 // PAGE + 2, wraps=True)
        alone = microseconds(attention(full, rows_of(rows, 1, 1_023), query, Sight(), LLAMA)[0])
        far = microseconds(attention(ring, rows_of(rows, 1, 32_767), query, Sight(window=1_024), LLAMA)[0])
        table.append({"rows": rows, "full at 1,024, µs": round(alone, 1), "window 1,024 at 32,768, µs": round(far, 1),
                      "ratio": round(far / alone, 2)})  # fmt: skip
    return table


def prefill_table(peer: FlashInfer | None) -> list[dict[str, object]]:
    table = []
    for rows, length in PREFILL:
        pool = Pool(rows, length // PAGE)
        query = random_numbers(rows * length, LLAMA.query, LLAMA.width)
        operations = 4 * LLAMA.query * LLAMA.width * rows * length * (length + 1) / 2
        ours = attention(pool, rows_of(rows, length, 0), query, Sight(), LLAMA)
        line: dict[str, object] = {"rows × tokens": f"{rows} × {length:,}"}
        for backend in ("fa2", "fa3") if peer is not None else ():
            theirs = peer.prefill(pool, query, rows, backend)  # type: ignore[union-attr]
            check(ours, theirs)
            line[f"FlashInfer {backend}, TFLOP/s"] = round(operations / microseconds(theirs[0]) / 1e6)
        line["Quire, TFLOP/s"] = round(operations / microseconds(ours[0]) / 1e6)
        for way in available()[:-1]:
            line[f"in steps, {way.name}"] = round(operations / step_microseconds(way, rows, length) / 1e6)
        table.append(line)
    return table


def latent_table(_peer: FlashInfer | None) -> list[dict[str, object]]:
    """DeepSeek-V3: 512 + 64 numbers a token, for 16 heads (one rank of eight) and for all 128."""
    table: list[dict[str, object]] = []
    rows, length, latent, rope = 128, 4_096, 512, 64
    pool = Pool(rows, length // PAGE, widths=(latent, rope))
    for heads in (16, 128):
        shape = HeadShape(heads, 1, latent, latent, 2, rope)
        query = random_numbers(rows, heads, latent + rope)
        took = microseconds(attention(pool, rows_of(rows, 1, length - 1), query, Sight(), shape)[0])
        read, operations = rows * length * (latent + rope) * 2, 2 * rows * length * heads * (2 * latent + rope)
        table.append({"rows × tokens": f"{rows} × {length:,}", "heads": heads, "TB/s": round(read / took / 1e6, 2),
                      "TFLOP/s": round(operations / took / 1e6)})  # fmt: skip
    return table


@triton.jit
def read_words(words, out, count: tl.constexpr):
    found = tl.load(words + tl.program_id(0).to(tl.int64) * count + tl.arange(0, count))
    tl.store(out + tl.program_id(0), tl.xor_sum(found, 0))


def pages_table(_peer: FlashInfer | None) -> list[dict[str, object]]:
    """Pages of 64 KiB; and what a plain read reaches, the ceiling of everything above."""
    page_bytes, pages = 1 << 16, 1 << 14
    arena = torch.randint(256, (2 * pages * page_bytes,), dtype=torch.uint8, device=DEVICE)
    order = torch.randperm(2 * pages, device=DEVICE).to(torch.int32) * (page_bytes // 256)
    staging = torch.empty(pages * page_bytes, dtype=torch.uint8, device=DEVICE)
    size, words = 8_192, arena.view(torch.int32)
    sums = torch.empty(words.numel() // size, dtype=torch.int32, device=DEVICE)
    moved = pages * page_bytes
    actions: dict[str, tuple[int, Callable[[], object]]] = {
        "read, in order": (2 * moved, lambda: read_words[(len(sums),)](words, sums, size)),
        "copy pages": (2 * moved, lambda: copy_pages(arena, order[:pages], order[pages:], page_bytes)),
        "gather pages": (2 * moved, lambda: gather_pages(arena, order[:pages], page_bytes, staging)),
        "clear pages": (moved, lambda: clear_pages(arena, order[:pages], page_bytes)),
    }
    return [{"what": name, "TB/s, read + written": round(bytes_ / microseconds(action) / 1e6, 2)}
            for name, (bytes_, action) in actions.items()]  # fmt: skip


TABLES = {"pages": pages_table, "decode": decode_table, "fp8": fp8_table, "window": window_table,
          "prefill": prefill_table, "latent": latent_table, "recurrent": lambda _peer: recurrent_table(),
          "experts": lambda _peer: experts_table(), "packed": lambda _peer: packed_table()}  # fmt: skip


def read_bandwidth() -> tuple[float, float]:
    """Bytes per microsecond, over two gigabytes: of a kernel that loads words and folds them, and of torch's sum."""
    numbers, size = torch.randn(1 << 29, device=DEVICE), 8_192
    words = numbers.view(torch.int32)
    folded = torch.empty(len(words) // size, dtype=torch.int32, device=DEVICE)
    plain = microseconds(lambda: read_words[(len(folded),)](words, folded, size))
    return words.nbytes / plain, words.nbytes / microseconds(lambda: numbers.sum())


def run(names: Sequence[str], tell: Tell) -> Report:
    peer = FlashInfer() if importlib.util.find_spec("flashinfer") else None
    tables: dict[str, list[dict[str, object]]] = {}
    for name in names:
        tell(name)
        tables[name] = TABLES[name](peer)
        torch.cuda.empty_cache()
    return Report(about("cuda"), tables)
