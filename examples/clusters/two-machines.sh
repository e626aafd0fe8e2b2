#!/usr/bin/env bash
# Two machines in one private network, without a scheduler. Both need polytask, the recipe and the data at the same paths.
#
#   on the first:   HEAD=10.0.0.1 NODE=0 bash two-machines.sh train recipe.yaml    one run on the GPUs of both, which
#   on the second:  HEAD=10.0.0.1 NODE=1 bash two-machines.sh train recipe.yaml    the first machine writes to its disk
#
#   on the first:   HEAD=10.0.0.1 bash two-machines.sh head                    a Ray cluster, until Ctrl-C
#   on the second:  HEAD=10.0.0.1 bash two-machines.sh worker                  joins it, until Ctrl-C
#   on the first:   HEAD=10.0.0.1 bash two-machines.sh study study.yaml        a study on it
#   on the first:   HEAD=10.0.0.1 bash two-machines.sh predict runs/recipe 'new/*.parquet' predicted
#
# `predict` needs a disk that both machines see, or an object store, for the run, the input and the output. Further
# options follow: `predict runs/recipe 'new/*.parquet' predicted --task opinion`.
#
# HEAD is the address of the first machine. Who can connect to Ray can run programs on both machines, so it asks for a
# token (Ray 2.52 or newer): `ray get-auth-token --generate` on the first machine writes it to ~/.ray/auth_token; copy
# that file to the second. A firewall should admit only these two machines as well.
set -euo pipefail

: "${HEAD:?set HEAD to the address of the first machine}"
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
PORT=${PORT:-6379}
GPUS=${GPUS:-1} # of each machine, for `train`
what=${1:?usage: HEAD=ADDRESS bash two-machines.sh train|head|worker|study|predict ...}
shift

case $what in
  train)
    exec torchrun --nnodes 2 --node-rank "${NODE:?set NODE to 0 on the first machine, to 1 on the second}" \
      --nproc-per-node "$GPUS" --master-addr "$HEAD" --master-port 29500 \
      -m polytask train "$@"
    ;;
  head)
    exec ray start --head --node-ip-address "$HEAD" --port "$PORT" --include-dashboard false --disable-usage-stats --block
    ;;
  worker)
    exec ray start --address "$HEAD:$PORT" --disable-usage-stats --block
    ;;
  study)
    exec polytask compare "$@" --engine ray --address "$HEAD:$PORT"
    ;;
  predict)
    run=${1:?the run} input=${2:?the input} output=${3:?the output folder}
    shift 3
    exec polytask predict "$run" --input "$input" --output "$output" --engine ray --address "$HEAD:$PORT" "$@"
    ;;
  *)
    echo "unknown: $what (train, head, worker, study or predict)" >&2
    exit 2
    ;;
esac
