"""Progress: whether steps settle in time."""

from __future__ import annotations

from quire.serve.progress import Progress
from serve_kit import Clock


def test_progress_is_lost_when_no_step_settles_in_time_and_never_by_waiting() -> None:
    """Beats of a loop that turns without settling anything do not count; ticks of an idle one do."""
    clock = Clock()
    watch = Progress(10.0, clock)
    assert not watch.is_progressing(), "nothing is known yet"
    watch.reset()
    for step in range(50):
        clock.now += 9.9
        watch.note(step, is_idle=False) if step else watch.note(0, is_idle=True)
        assert watch.is_progressing()
    clock.now += 6
    watch.note(49, is_idle=False)
    clock.now += 6
    watch.note(49, is_idle=False)
    assert not watch.is_progressing()
    watch.note(50, is_idle=False)
    assert watch.is_progressing()
