#!/usr/bin/env bash
# Does the picture help the drafter? Three seeds each of the visual correction, of none, and of one of
# the same size that sees no picture; the same artifacts, budget and families; tau of a chain of six.
# Everything is fixed here beforehand; the bench draws test pictures, which nothing was trained on.
#   usage: benchmarks/visual_gain.sh ARTIFACTS OUT [STEPS]
set -eu
artifacts=$1 out=$2 steps=${3:-1400}
run=${VARIFOCAL:-.venv/bin/varifocal}
chain=width=1:nodes=6:depth=6
entries=plain
for correction in visual none blind; do
  for seed in 1 2 3; do
    folder=$out/$correction-$seed
    [ -e "$folder/README.md" ] || "$run" train --drafter fovea --artifacts "$artifacts" --out "$folder" \
      --set correction=$correction --seed $seed --steps "$steps" --batch 16 --optimizer muon \
      --rate 2e-3 --precision bf16 --held-out none --threads 2 --resume
    entries=$entries,$folder:$chain
    [ "$correction" != visual ] || entries=$entries,$folder:$chain:memory_from=$out/other.png
  done
done
"$(dirname "$run")/python" - "$out/other.png" <<'PY'
import sys
from varifocal.demo.world import draw
draw("document", 1, "valid").image.save(sys.argv[1])
PY
"$run" bench --drafters "$entries" --suite demo --limit 10 --threads 1 --clock cpu --dtype bfloat16 \
  --json "$out/visual_gain.json"
