# make run and make test work from an empty checkout: each sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLIENTS := .venv-clients
RAY := .venv-ray
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# One test more at a time than there are processors: many wait for a server.

.DEFAULT_GOAL := help
.PHONY: help setup run test servers test-oldest clients browsers ray screenshots lint board check-exhaustive bench-capacity bench-control bench-sessions bench-turns bench-agents bench-reuse bench-waves bench-routers bench-forks bench-drafts bench-trace bench-cpu bench-perplexity bench-busy bench-packed bench-kernels bench-fp8 bench-decode bench-batching bench-at-once bench-peer bench-splits bench-stages bench-supported bench-tiers bench-bus bench-messages bench-serve bench-load bench-http bench-inspect bench-hostile bench-hour bench-mutants ranks soak soak-ranks soak-serve soak-peer clean

help:  ## What can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt hatch_build.py $(wildcard src/quire/native/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Quire needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up $(VENV) with torch and the tools of the tests: once; minutes, by the size of torch's build."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

setup: $(STAMP)  ## Create .venv and install Quire with everything the tests need

run: setup  ## Answer a question with the default model (fetched once), its plan and its speed
	$(BIN)/quire generate --prompt "What is the capital of France?" --stats

test: setup  ## All tests
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

servers: setup  ## Whole servers and other processes: their starts, ends and troubles
	$(BIN)/python -m pytest -m 'servers and not soak' --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test-oldest:  ## All tests with the oldest versions that pyproject.toml allows, in .venv-oldest
	$(PYTHON) -m venv .venv-oldest
	$(PYTHON) .ci/oldest.py > .venv-oldest/constraints.txt
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv-oldest/constraints.txt --editable '.[dev]'
	.venv-oldest/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

$(CLIENTS)/.installed: tests/clients/requirements.txt tests/clients/package.json tests/clients/package-lock.json tests/clients/install tests/kit/debian.sh
	tests/clients/install $(PYTHON) $(CLIENTS)
	@touch $@

ranks: setup  ## Two ranks behind a server, 10 of them killed and 2 stopped at random moments
	$(BIN)/python -m pytest -q -s -m ranks tests/serve/ranks

soak-ranks: setup  ## The same with 100 killed and 20 stopped
	QUIRE_RANK_KILLS=100 QUIRE_RANK_STOPS=20 $(BIN)/python -m pytest -q -s -m ranks tests/serve/ranks

clients: setup $(CLIENTS)/.installed  ## Published clients against quire serve, in .venv-clients
	SERVER_PYTHON=$(abspath $(BIN)/python) $(CLIENTS)/bin/python -m pytest tests/clients $(ARGUMENTS)

tests/browsers/node_modules/.installed: tests/browsers/package.json tests/browsers/package-lock.json tests/browsers/install tests/kit/debian.sh
	tests/browsers/install
	@mkdir -p tests/browsers/node_modules && touch $@

browsers: setup tests/browsers/node_modules/.installed  ## The inspector's page in Chromium and Firefox
	$(BIN)/python -m pytest tests/browsers $(ARGUMENTS)

ray:  ## quire deploy and ranks on Ray, in .venv-ray; skipped, with a word, where Ray cannot be installed
	tests/ray/install $(PYTHON) $(RAY)
	if [ -e $(RAY)/.installed ]; then $(RAY)/bin/python -m pytest tests/ray $(ARGUMENTS); fi

lint: setup  ## Formatting, lint, types and the layers of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=src:tests/kit:bench $(BIN)/mypy --follow-imports silent tests/gpu  # no GPU, no run: types at least
	$(BIN)/lint-imports

board: setup  ## The Grafana board, made anew of its panels
	$(BIN)/python -m quire.serve.board.grafana > docs/grafana/quire.json

check-exhaustive: setup  ## Every schedule of small systems, two at a time (less than 30 minutes on 2 cores)
	$(BIN)/quire check --exhaustive --processes 2 $(ARGUMENTS)

bench-capacity: setup  ## Waste and requests per model, beside a peer's planner
	$(BIN)/python bench/capacity.py $(ARGUMENTS)

bench-control: setup  ## Python per step, beside vLLM 0.32.0 (installed into .venv-vllm)
	$(BIN)/python bench/control.py $(ARGUMENTS)

bench-sessions: setup  ## How much is reused when sessions do not all fit, beside a per-page LRU
	$(BIN)/python bench/sessions.py $(ARGUMENTS)

bench-turns: setup  ## What the next turn of a conversation finds, and how soon its first token comes, on this CPU
	$(BIN)/python bench/turns.py $(ARGUMENTS)

bench-agents: setup  ## What leases keep of agents that pause, and what others notice, compared with no leases and LRU
	$(BIN)/python bench/agents.py $(ARGUMENTS)

bench-reuse: setup  ## How much six workloads reuse on five models in four pools, compared with other caches
	$(BIN)/python bench/reuse.py $(ARGUMENTS)

bench-forks: setup  ## Bytes that 16 branches of a 64k prompt hold, compared with what they need exactly
	$(BIN)/python bench/branches.py $(ARGUMENTS)

bench-drafts: setup  ## Tokens per step on a transcript that repeats itself, and what looking up drafts costs
	$(BIN)/python bench/drafts.py $(ARGUMENTS)

bench-waves: setup  ## How much is found when sessions all return at once; ARGUMENTS=--gpu computes it on this GPU
	$(BIN)/python bench/waves.py $(ARGUMENTS)

bench-routers: setup  ## What routers reuse in front of four replicas, on virtual time (some 15 minutes)
	$(BIN)/python bench/routers.py $(ARGUMENTS)

bench-trace: setup  ## Replays a request trace twice: ARGUMENTS=FILE
	$(BIN)/python bench/trace.py $(ARGUMENTS)

.venv-llama:  # llama.cpp is built from source, for this CPU; it takes over ten minutes
	python3 -m venv $@ && ($@/bin/pip install --no-binary llama-cpp-python llama-cpp-python || (rm -rf $@; false))

bench-cpu: setup .venv-llama  ## Tokens per second on this CPU, compared with llama.cpp and transformers
	OMP_WAIT_POLICY=passive $(BIN)/python bench/cpu.py --llama .venv-llama/bin/python $(ARGUMENTS)

bench-perplexity: setup  ## Perplexity of SmolLM2-135M in each form in which its weights can lie in memory
	$(BIN)/python bench/perplexity.py $(ARGUMENTS)

bench-busy: setup  ## Decode on a CPU that two other processes use too, by what multiplies and how threads wait
	$(BIN)/python bench/busy.py $(ARGUMENTS)

bench-splits: setup  ## Which model types run on two ranks and on two stages: the table of docs/splits.md
	$(BIN)/python bench/splits.py $(ARGUMENTS)

bench-stages: setup  ## Two pipeline stages on this CPU, with a step in flight for each compared with one at a time
	$(BIN)/python bench/stages.py $(ARGUMENTS)

bench-packed: setup  ## Products of packed weights on this CPU, in C compared with dequantising
	$(BIN)/python bench/packed_products.py $(ARGUMENTS)

bench-supported: setup  ## Which model types run, beside transformers: the table of docs/supported-models.md
	$(BIN)/python bench/supported.py $(ARGUMENTS)

bench-serve: setup  ## Tokens per second of the server, beside the engine alone
	$(BIN)/python bench/serve.py $(ARGUMENTS)

bench-load: setup  ## The server compared with Engine.step on the same work, on this GPU (or ARGUMENTS='--device cpu ...')
	$(BIN)/python bench/serve_load.py $(ARGUMENTS)

bench-http: setup  ## Processor time of the HTTP process for each streamed token, with an engine that needs none
	$(BIN)/python bench/http_cost.py $(ARGUMENTS)

bench-inspect: setup tests/browsers/node_modules/.installed  ## What the inspector costs: the engine, the server, and a frame of its page
	$(BIN)/python bench/inspector.py $(ARGUMENTS)
	$(BIN)/python bench/inspector.py --server $(ARGUMENTS)

screenshots: setup tests/browsers/node_modules/.installed  ## Pictures of the inspector for the docs
	$(BIN)/python bench/screenshots.py

bench-hostile: setup  ## What others notice of clients without a key that try to stall the server or to fill its memory
	$(BIN)/python bench/hostile.py $(ARGUMENTS)

soak-serve: setup  ## 200 clients that do as they please, for two minutes
	$(BIN)/python bench/serve.py --soak 120 $(ARGUMENTS)

bench-kernels: setup  ## Kernels on this GPU, beside FlashInfer where it is installed
	$(BIN)/quire bench kernels $(ARGUMENTS)

bench-fp8: setup  ## Perplexity with keys and values in 8 bits, and requests in one pool
	$(BIN)/python bench/fp8.py $(ARGUMENTS)

bench-decode: setup  ## Decode steps of the whole engine on this GPU, beside bare graph replays and the memory's limit
	$(BIN)/quire bench decode $(ARGUMENTS)

bench-batching: setup  ## Requests from beginning to end on this GPU, beside transformers' continuous batching
	$(BIN)/python bench/batching.py $(ARGUMENTS)

bench-peer: setup  ## Quire and vLLM in turn on the same work, on this GPU: one table (vLLM must be installed)
	$(BIN)/python bench/peer.py $(ARGUMENTS)

bench-at-once: setup  ## Requests of 8k tokens decoding at once in 64 GiB, in 16 and in 8 bits, beside vLLM 0.32.0
	$(BIN)/python bench/at_once.py $(ARGUMENTS)

bench-tiers: setup  ## Time to first token of returning sessions: host, disk and a server, beside computing again
	$(BIN)/python bench/tiers.py $(ARGUMENTS)

bench-messages: setup  ## Bytes and times of the messages by which rank 0 sends steps to the other ranks
	$(BIN)/python bench/messages.py $(ARGUMENTS)

bench-bus: setup  ## Records between a GPU's pool and host memory, alone and beside decode steps, beside one pinned copy
	$(BIN)/python bench/bus.py $(ARGUMENTS)

bench-hour: setup  ## An hour of a request trace on virtual time, behind a tier with random faults: ARGUMENTS=FILE
	$(BIN)/python bench/hour.py $(ARGUMENTS)

bench-mutants: setup  ## How many small changes to the memory, the scheduler and the tiers are noticed, and which are not
	$(BIN)/python bench/mutants.py $(ARGUMENTS)

soak: setup  ## The long runs: every option of every family, all examples, a writer killed at random moments, random checks, planted bugs
	$(BIN)/quire models --check --options
	QUIRE_ALL_EXAMPLES=1 $(BIN)/python -m pytest -q -m 'soak or hypothesis' --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
	QUIRE_KILLS=100 $(BIN)/python -m pytest -q tests/torch/tiers/test_disk.py -k killed
	$(BIN)/quire check --steps 200000 --seed 11
	$(BIN)/quire check --mutate all --seed 11

soak-peer: setup  ## Hand-over between two engines: 1,000 requests aborted and each side killed 100 times, at random moments
	QUIRE_PEER_ABORTS=1000 QUIRE_PEER_KILLS=100 $(BIN)/python -m pytest -q -s -m "not soak" tests/torch/tiers/test_hand_over.py -k "aborted or killed"

clean:  ## Remove .venv and caches
	rm -rf $(VENV) .venv-oldest $(CLIENTS) $(RAY) tests/clients/node_modules tests/browsers/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
