"""Random kinds, and random models made of them, for the laws."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st
from oracle import Remembers, Share

from quire.core.dtypes import DType
from quire.core.memory import Follows, Memory, Part
from quire.kinds import Kind, kind_of
from quire.models.shape import Layer, ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import Plan, StagePlan
from quire.plan.settings import Budget, Settings

LONGEST_WINDOW = 200
ENOUGH = Budget(pool_bytes=1 << 38)
"""For laws that look at the geometry alone."""


def memory_of(how: Remembers, parts: tuple[Part, ...] = (), purpose: str = "attention") -> Memory:
    return Memory(
        how.kind,
        parts,
        window=how.window or None,
        chunk=how.chunk or None,
        sinks=how.sinks or None,
        tokens_per_state=how.fold,
        encoder_tokens=how.encoder or None,
        rewinds=how.rewinds,
        purpose=purpose,
        others=(("top_tokens", how.top),) if how.top else (),
    )


def rules(how: Remembers) -> Kind:
    """What Quire makes of it: the thing on trial."""
    return kind_of(memory_of(how))


def remembers() -> st.SearchStrategy[Remembers]:
    size = st.integers(1, LONGEST_WINDOW)
    return st.one_of(
        st.just(Remembers("full")),
        st.builds(lambda w: Remembers("window", window=w), size),
        st.builds(lambda c: Remembers("chunked", chunk=c), size),
        st.builds(lambda s, w: Remembers("sink", sinks=s, window=w), st.integers(1, 40), size),
        st.builds(lambda t: Remembers("latent", fold=t), st.sampled_from((1, 2, 4))),
        st.builds(lambda t: Remembers("indexed", top=t), size),
        st.builds(lambda r: Remembers("state", rewinds=r), st.booleans()),
        st.builds(lambda e: Remembers("cross", encoder=e), size),
    )


def page_for(how: Remembers) -> st.SearchStrategy[int]:
    """Tokens per page, powers of two or not, such that no fold is cut."""
    return st.integers(1, 64 // how.fold).map(lambda pages: pages * how.fold)


@st.composite
def parts(draw: st.DrawFn, how: Remembers, tensor_parallel: int) -> tuple[Part, ...]:
    if how.kind == "state":
        size = draw(st.integers(1, 60_000))
        return (Part("state", 1, size, dtype=DType.INT8, replicated=draw(st.booleans())),)
    width = draw(st.sampled_from((5, 16, 64, 80, 128)))
    if how.kind == "latent":
        scale = draw(st.sampled_from((0, 4)))
        latent = Part("latent", 1, width, follows=Follows.KV, replicated=True, scale_bytes=scale)
        index = Part("index", 1, 33, dtype=DType.FP8, replicated=True, scale_bytes=4)
        return (latent, index) if draw(st.booleans()) else (latent,)
    if how.kind == "indexed":
        rows = ("latent", width), ("index", 33)
        found = tuple(Part(name, 1, w, follows=Follows.KV, replicated=True, scale_bytes=4) for name, w in rows)
        return found if draw(st.booleans()) else found[:1]
    heads = draw(st.sampled_from((1, 2, 4, 8, 11)).filter(lambda n: n >= tensor_parallel or tensor_parallel % n == 0))
    return (Part("key", heads, width, follows=Follows.KV), Part("value", heads, width, follows=Follows.KV))


@dataclass(frozen=True)
class Mix:
    """A model whose every memory is known by its definition, and how it is to be planned."""

    hows: tuple[Remembers, ...]
    model: ModelShape
    settings: Settings

    def plan(self, budget: Budget, **changes: object) -> Plan:
        return make_plan(self.model, replace(self.settings, **changes), budget)  # type: ignore[arg-type]

    def how(self, kind: Kind) -> Remembers:
        return next(how for how in self.hows if rules(how) == kind)

    def shares(self, stage: StagePlan) -> list[Share]:
        return [Share(self.how(k.kind), k.page_tokens, k.groups, k.pages_per_sheet) for k in stage.kinds]


@st.composite
def mixes(draw: st.DrawFn, most_stages: int = 2, tensor_parallel: int = 1) -> Mix:
    """One to four kinds, each in one to six layers of one or two geometries, in any order."""
    hows = draw(st.lists(remembers(), min_size=1, max_size=4, unique_by=lambda how: rules(how).name))
    layers = []
    for how in hows:
        for _ in range(draw(st.integers(1, 2))):
            memory = memory_of(how, draw(parts(how, tensor_parallel)))
            layers += [Layer((memory,), weight_bytes=1_000_003)] * draw(st.integers(1, 3))
    layers = draw(st.permutations(layers))
    if draw(st.booleans()):
        # A layer may remember in two ways, and one may keep nothing.
        second = replace(layers[-1].memories[0], purpose="second")
        layers = [replace(layers[0], memories=(*layers[0].memories, second)), *layers[1:], Layer((), weight_bytes=7)]
    forced: dict[str, int] = {}
    if draw(st.booleans()):
        forced[""] = draw(st.integers(1, 16)) * 4
    for how in hows:
        if how.kind != "state" and draw(st.integers(0, 3)) == 0:
            # "latent" names the kind and, with it, those that fold: 4 goes with all of them.
            forced[rules(how).name] = draw(page_for(replace(how, fold=4) if how.kind == "latent" else how))
    settings = Settings(
        page_tokens=forced,
        reserved_pages=draw(st.sampled_from((0, 0, 1, 2))),
        speculative_tokens=draw(st.sampled_from((0, 0, 1, 3, 7))),
        pipeline_parallel=draw(st.integers(1, min(most_stages, len(layers)))),
        tensor_parallel=tensor_parallel,
        batch_tokens=draw(st.sampled_from((16, 128, 8192))),
        kv_dtype=draw(st.sampled_from((DType.BF16, DType.FP8))),
        max_requests=8,
    )
    model = ModelShape("mix", "laws", tuple(layers), max_length=draw(st.integers(2, 500)))
    return Mix(tuple(hows), model, settings)
