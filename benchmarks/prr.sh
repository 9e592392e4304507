#!/usr/bin/env bash
# Is the simulator of PRR within 10 % of two threads here, and what do two threads bring? Six
# minutes on a quiet machine with two cores; on a busy one neither question is answered. Phases of
# known length first, which hold the schedule alone to the simulator; then real ones at four lengths;
# then tokens of the tiny model, over three periods of the guard, and of MODEL, a folder of
# scripts/smollm2.py, if one is given.
#   usage: benchmarks/prr.sh OUT [MODEL]
set -eu
out=$1 model=${2:-}
run=${PYTHON:-.venv/bin/python}
here=$(dirname "$0")
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
mkdir -p "$out"
"$run" "$here/prr.py" --asleep --contexts 2048 8192 --turns "${ASLEEP_TURNS:-4}" --json "$out/prr-schedule.json"
"$run" "$here/prr.py" --contexts ${CONTEXTS:-4096 8192 16384 32768} --turns "${TURNS:-30}" \
  --json "$out/prr-simulator.json"
"$run" "$here/prr_latency.py" --target tiny --tasks copy,chain --contexts ${TINY_CONTEXTS:-2048 7000} \
  --tokens "${TINY_TOKENS:-384}" --json "$out/prr-latency-tiny.json"
[ -z "$model" ] || "$run" "$here/prr_latency.py" --target "$model" --contexts ${MODEL_CONTEXTS:-6000} \
  --tokens "${TOKENS:-128}" --json "$out/prr-latency-model.json"
