"""A conversation with a model on this machine, in the terminal. An empty line, /exit or end of input leaves."""

from __future__ import annotations

import argparse
import sys

from quire.cli.generate import add_model_arguments, fitting, sampling_of, start

HELP = "/help   this list\n/exit   leave (an empty line and Ctrl-D do so too)\nAll other lines are sent to the model."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_model_arguments(parser, stats=False)


def run(options: argparse.Namespace) -> None:
    sampling = sampling_of(options)  # so that errors are reported before anything is loaded
    llm = start(options)
    print(f"{llm.plan.model}: an empty line leaves, /help lists commands", file=sys.stderr)
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
    """The next message; empty: the conversation is over."""
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            print()
            return ""
        if text != "/help":
            return "" if text == "/exit" else text
        print(HELP, file=sys.stderr)
