"""A chat template that computes for too long is ended, in whichever thread it runs."""

from __future__ import annotations

import threading

import pytest

from quire.core.errors import InputError
from quire.text import templates
from quire.text.templates import ChatTemplate

SAID = [{"role": "user", "content": "x" * 3000}]
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
READS = (
    "{% for a in range(99999) %}{% for b in messages[0].content %}{{ messages[0].content[1] }}{% endfor %}{% endfor %}"
)
CALLS = "{% macro f(n) %}{% for i in range(9) %}{{ f(n + 1) if n < 9 }}{% endfor %}{% endmacro %}{{ f(0) }}"


@pytest.mark.story
@pytest.mark.parametrize("text", [LOOPS, READS, CALLS], ids=["loops", "reads", "calls"])
def test_a_template_that_computes_for_too_long_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MOST_SECONDS", 0.05)
    with pytest.raises(InputError, match=r"refuses these 1 messages: it computes for more than 0.05 s"):
        ChatTemplate(text, {}).render(SAID)


def test_each_rendering_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads of its own too: what one has used is not missing in another, or in the next."""
    monkeypatch.setattr(templates, "OPERATIONS_PER_LOOK", 1)
    template = ChatTemplate("{% for m in messages %}{{ m.content[0] }}{% endfor %}", {})
    rendered: list[str] = []
    readers = [threading.Thread(target=lambda: rendered.append(template.render(SAID * 50))) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [*rendered, template.render(SAID)] == ["x" * 50] * 3 + ["x"]
