"""One answer made of the answers of all replicas: leases, the cache, metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]
_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (.*)")
_COMMENT = re.compile(r"# (?:HELP|TYPE) ([A-Za-z_:][A-Za-z0-9_:]*)")


def merged(method: str, path: str, contents: Mapping[str, bytes]) -> bytes:
    """`contents`: answers by the name of the replica, at least one."""
    if path == "/metrics":
        return with_replicas({name: content.decode() for name, content in contents.items()}).encode()
    answers = [json.loads(content) for content in contents.values()]
    return json.dumps(_MERGERS[method, path](answers), separators=(",", ":")).encode()


def _leases(answers: list[Json]) -> Json:
    data = [lease for answer in answers for lease in answer["data"]]
    return answers[0] | {"data": data, "broken": [one for answer in answers for one in answer["broken"]]}


def _cached(answers: list[Json]) -> Json:
    pages: dict[tuple[int, str], int] = {}
    for kind in (kind for answer in answers for kind in answer["kinds"]):
        key = kind["stage"], kind["kind"]
        pages[key] = pages.get(key, 0) + kind["cached_pages"]
    kinds = [{"stage": stage, "kind": kind, "cached_pages": count} for (stage, kind), count in pages.items()]
    return answers[0] | {"kinds": kinds}


def _dropped(answers: list[Json]) -> Json:
    keeping = [name for answer in answers for name in answer["kept_by"]]
    return answers[0] | {"dropped_units": sum(one["dropped_units"] for one in answers), "kept_by": keeping}


_MERGERS: Mapping[tuple[str, str], Callable[[list[Json]], Json]] = {
    ("GET", "/v1/leases"): _leases,
    ("GET", "/v1/cache"): _cached,
    ("DELETE", "/v1/cache"): _dropped,
}


def with_replicas(texts: Mapping[str, str]) -> str:
    """Metrics of all replicas in Prometheus's text format, each sample with a label `replica`. The samples of a metric
    follow its description, as the format demands."""
    families: dict[str, list[str]] = {}
    for name, text in texts.items():
        family: list[str] = []
        for line in text.splitlines():
            if comment := _COMMENT.match(line):
                family = families.setdefault(comment.group(1), [])
                if line not in family:
                    family.append(line)
            elif sample := _SAMPLE.fullmatch(line):
                metric, labels, value = sample.groups()
                own = f'replica="{name}"'
                family.append(f"{metric}{{{f'{labels},{own}' if labels else own}}} {value}")
    return "".join(f"{line}\n" for lines in families.values() for line in lines)
