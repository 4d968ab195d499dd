"""A conversation with a model on this machine, in the terminal. An empty line or end of input leaves."""

from __future__ import annotations

import argparse

from quire.cli.generate import add_model_arguments, fitting, sampling_of, start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_model_arguments(parser, stats=False)


def run(options: argparse.Namespace) -> None:
    sampling = sampling_of(options)  # so that errors are reported before anything is loaded
    llm = start(options)
    messages = [{"role": "system", "content": options.system}] if options.system else []
    while text := _ask():
        messages.append({"role": "user", "content": text})
        most = fitting(llm, messages, options.max_tokens)
        answer = ""
        for piece in llm.stream(messages, sampling, max_tokens=most):
            answer += piece
            print(piece, end="", flush=True)
        print()
        messages.append({"role": "assistant", "content": answer})
    llm.close()


def _ask() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        print()
        return ""
