#!/usr/bin/env bash
# Does the picture help the drafter? Three seeds each of the visual correction, of none, and of one of
# the same size that sees no picture, on the families that read text, numbers or charts; the same
# artifacts, budget, text-only prefix and two trainings at a time on a thread each; tau of a chain of six.
# Everything is fixed here beforehand; the bench draws test pictures, which nothing was trained on.
#   usage: benchmarks/visual_gain.sh OUT [STEPS] [COUNT]
set -eu
out=$1 steps=${2:-900} count=${3:-900}
run=${VARIFOCAL:-.venv/bin/varifocal}
families=text,document,chart,sums
artifacts=$out/artifacts
export OMP_WAIT_POLICY=PASSIVE
mkdir -p "$out"
"$run" record --data demo --families $families --count "$count" --answers reference \
  --out "$artifacts" --threads 2 --dtype bfloat16

learn() { # CORRECTION SEED
  folder=$out/$1-$2
  [ -e "$folder/README.md" ] || "$run" train --drafter fovea --artifacts "$artifacts" \
    --out "$folder" --set correction="$1" --set max_bases=32 --seed "$2" --steps "$steps" --batch 8 \
    --optimizer muon --rate 2e-3 --precision bf16 --valid 0.02 --held-out none --threads 1 \
    --dtype bfloat16 --resume --quiet > "$out/$1-$2.log" 2>&1
}

chain=width=1:nodes=6:depth=6
entries=plain
for seed in 1 2 3; do
  for correction in visual none blind; do
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    learn $correction $seed &
    entries=$entries,$out/$correction-$seed:$chain
    [ $correction != visual ] || entries=$entries,$out/visual-$seed:$chain:memory_from=$out/other.png
  done
done
wait
"$(dirname "$run")/python" - "$out/other.png" <<'PY'
import sys
from varifocal.demo.world import draw
draw("document", 1, "valid").image.save(sys.argv[1])
PY
"$run" bench --drafters "$entries" --suite demo --families $families --limit 10 --threads 1 \
  --clock cpu --dtype bfloat16 --repeats 1 --json "$out/visual_gain.json"
