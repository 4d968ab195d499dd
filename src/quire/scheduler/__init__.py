"""Who runs next: rows, queue, admission, chunking, preemption, and the reasons."""
