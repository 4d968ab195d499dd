"""Makes the Grafana board of the panels: python -m quire.serve.board.grafana > docs/grafana/quire.json (make board)."""

from __future__ import annotations

import json
import string
from typing import Any

from quire.serve.board.panels import PANELS, Panel

WIDTH, HEIGHT, COLUMNS = 8, 7, 3
"""Of a panel, in Grafana's grid of 24 columns."""


def board() -> str:
    panels = [_panel(panel, place) for place, panel in enumerate(PANELS)]
    return json.dumps({**_HEAD, "panels": panels}, indent=1) + "\n"


_HEAD: dict[str, Any] = {
    "title": "Quire",
    "uid": "quire",
    "schemaVersion": 39,
    "version": 1,
    "editable": True,
    "refresh": "10s",
    "time": {"from": "now-1h", "to": "now"},
    "tags": ["quire"],
    "templating": {
        "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}],
    },
}


def _panel(panel: Panel, place: int) -> dict[str, Any]:
    row, column = divmod(place, COLUMNS)
    return {
        "id": place + 1,
        "title": panel.title,
        "description": panel.description,
        "type": panel.drawn,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"expr": query, "legendFormat": legend, "refId": letter}
            for letter, (legend, query) in zip(string.ascii_uppercase, panel.queries, strict=False)
        ],
    }


if __name__ == "__main__":
    print(board(), end="")
