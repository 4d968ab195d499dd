"""Which requests run in the next step: rows, queue, admission, chunked prefill, preemption, and the reasons."""
