"""llama.cpp as a peer of `bench/cpu.py`: a process of its own, with its own packages.

    python bench/peer_llama.py FILE.gguf [--threads 2] [--streams 16]

Reads lines `{"streams": 16, "prompt": 128, "outputs": 64}` and answers with the seconds, of the clock and of the
processor, that prompts and decoding took. All streams decode in one batch, each the token of its greatest logit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import llama_cpp
import numpy as np

CONTEXT = 2048


class Peer:
    def __init__(self, file: str, threads: int, streams: int) -> None:
        llama_cpp.llama_log_set(SILENT, None)
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
        given = llama_cpp.llama_context_default_params()
        given.n_ctx, given.n_batch, given.n_ubatch = CONTEXT * streams, 2048, 512
        given.n_seq_max, given.n_threads, given.n_threads_batch = streams, threads, threads
        self.context = llama_cpp.llama_init_from_model(self.model, given)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(2048, 0, 1)

    def _decode(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """(token, position, stream, whether its logits are wanted)"""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for place, (token, position, stream, is_wanted) in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.n_seq_id[place] = token, position, 1
            batch.seq_id[place][0], batch.logits[place] = stream, is_wanted
        assert llama_cpp.llama_decode(self.context, batch) == 0

    def _best(self, place: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self.context, place)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def run(self, streams: int, prompt: int, outputs: int) -> dict[str, float]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        ids = np.random.default_rng(0).integers(100, 40_000, (streams, prompt)).tolist()
        begin, own, last = time.perf_counter(), time.process_time(), []
        for stream, tokens in enumerate(ids):
            self._decode([(token, at, stream, at == prompt - 1) for at, token in enumerate(tokens)])
            last.append(self._best(prompt - 1))
        middle, own_middle = time.perf_counter(), time.process_time()
        for position in range(prompt, prompt + outputs - 1):
            self._decode([(token, position, stream, True) for stream, token in enumerate(last)])
            last = [self._best(stream) for stream in range(streams)]
        end, own_end = time.perf_counter(), time.process_time()
        return {"prefill_s": middle - begin, "prefill_cpu_s": own_middle - own,
                "decode_s": end - middle, "decode_cpu_s": own_end - own_middle}  # fmt: skip


@llama_cpp.llama_log_callback
def SILENT(_level: int, _text: bytes, _data: object) -> None:  # noqa: N802
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, default=16)
    options = parser.parse_args()
    peer = Peer(options.file, options.threads, options.streams)
    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(peer.run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
