# The commands of this repository. `make help` lists them.

.DEFAULT_GOAL := help
SHELL := bash

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: ## Build and start server, agent and demo on this machine, print the page's address
	@scripts/up.sh

down: ## Stop what `make up` started and remove its data
	@scripts/down.sh

demo-fault: ## Break something in the demo fleet: FAULT=xid79|lost|hang|stall|thermal|slow|lowclock|slowlink|wrongnet|heal
	@scripts/demo_fault.sh $(FAULT)

demo-training: ## Train for real on the CPU under `make up`: ARGS="--slow-rank 1 --kill-rank 2"
	@scripts/demo_training.sh $(ARGS)

test: ## Install what the tests need, run every check, print the table of stages
	@scripts/test.sh

test-postgres: ## Run on PostgreSQL the end-to-end tests that `make test` runs on SQLite alone (minutes)
	@scripts/test.sh build postgres

lint: ## Formatting, clippy and the house rules
	@scripts/test.sh lints

fmt: ## Format the code
	@cargo fmt --all

fuzz: ## Give everything that reads bytes of others many spoilt inputs (ROUNDS=100000 of each)
	@GPUFLEET_FUZZ_ROUNDS=$(or $(ROUNDS),100000) cargo test --release -p gpufleet-tests --test fuzz

deny: ## Check licences, bans and sources of dependencies (needs cargo-deny)
	@cargo deny --version >/dev/null 2>&1 || { echo "install it first: cargo install --locked cargo-deny"; exit 1; }
	@cargo deny check bans licenses sources

detection-report: ## Measure the detectors and write docs/detection.md
	@GPUFLEET_BLESS=1 cargo nextest run --workspace -E 'package(gpufleet-analysis) and test(quality)'
	@GPUFLEET_BLESS=1 cargo nextest run --workspace -E 'package(gpufleet-server) and test(quality)'

detection-healthy: ## Measure false alarms in 10,000 GPU-days of training too (minutes)
	@GPUFLEET_BLESS=1 GPUFLEET_HEALTHY=1 cargo nextest run --cargo-profile fast -p gpufleet-analysis -E 'test(quality)'

bench-agent: ## Measure the agent against the stand-in driver (minutes)
	@scripts/bench.sh agent $(ARGS)

bench-training: ## Measure the agent under 64 training processes, and kill it 100 times (ARGS=--short for a quick look)
	@scripts/bench.sh training $(ARGS)

bench-server: ## Measure the server with 10,000 simulated GPUs (ARGS=--short for a quick look)
	@scripts/bench.sh server $(ARGS)

bench-outage: ## Measure the server after an outage of 2 h of 1,000 agents (ARGS=--short for a quick look)
	@scripts/bench.sh outage $(ARGS)

bench-detect: ## Measure a tick of the detectors over 100,000 simulated GPUs (ARGS=--short for a quick look)
	@scripts/bench.sh detect $(ARGS)

bench-notify: ## Measure how soon people are told, and what a minute of trouble makes of messages
	@scripts/bench.sh notify $(ARGS)

bench-report: ## Measure the report of a month of 10,000 GPUs (ARGS=--short for a quick look)
	@scripts/bench.sh report $(ARGS)

bench-replay: ## Measure the replay of a stored day (ARGS="--gpus 20000 --minutes 10")
	@scripts/bench.sh replay $(ARGS)

bench-otlp: ## Measure OTLP decoding and folding alone
	@scripts/bench.sh otlp $(ARGS)

bench-runs: ## Measure what a run of 20,000 ranks costs the server
	@scripts/bench.sh runs $(ARGS)

bench-hooks: ## Measure what the hooks cost a training process
	@scripts/bench.sh hooks
	@scripts/hooks.sh bench

gpu-pack: ## Put what tests/gpu/run.sh needs on a machine with a GPU into target/gpu-pack.tar.gz
	@tests/gpu/pack.sh

wheel: ## Build the Python package of the hooks into target/wheels
	@scripts/hooks.sh wheel

test-adapters: ## Test the hooks with PyPI's torch, Transformers and Lightning (a download of 3 GB)
	@scripts/hooks.sh adapters

test-days: ## Live a thousand simulated bad days of each kind, of which `make test` lives 120 (ten minutes)
	@scripts/test.sh build days

test-nccl-asan: ## Test the profiler plugin for NCCL under AddressSanitizer (minutes)
	@scripts/sanitize.sh

test-schemathesis: ## Give the API what nobody would ask for: schemathesis from PyPI (minutes; ARGS="REQUESTS SEED")
	@scripts/schemathesis.sh $(ARGS)

test-focus: ## Give a FOCUS file with every kind of line to PyPI's focus-validator (minutes)
	@scripts/focus.sh

nccl-plugin: ## Build the profiler plugin for NCCL, target/plugin/libgpufleet-nccl-profiler.so
	@cargo build --profile plugin -p gpufleet-nccl-profiler
	@cp target/plugin/libgpufleet_nccl_profiler.so target/plugin/libgpufleet-nccl-profiler.so

package: ## Build a .deb and a tarball of agent and server into target/package
	@scripts/package.sh

test-package: ## Install the .deb of `make package` on a bare Debian 12, run what is in it, remove it (root, minutes)
	@scripts/try_package.sh $(or $(ARGS),$(firstword $(wildcard target/package/*.deb)))

image: ## Build the container image gpufleet:VERSION (with docker, or buildah)
	@scripts/image.sh

test-image: ## Try the Dockerfile's steps with buildah where no registry of images is reached (root, minutes; ARGS=FOLDER with programs)
	@scripts/image.sh check $(ARGS)

.PHONY: detection-report detection-healthy package test-package image test-image help up down demo-fault demo-training test test-postgres lint fmt fuzz deny bench-agent bench-training bench-server bench-outage bench-detect bench-notify bench-report bench-replay bench-otlp bench-runs bench-hooks gpu-pack wheel nccl-plugin test-days test-nccl-asan test-schemathesis test-focus test-adapters
