#!/usr/bin/env bash
# A Ray cluster inside a SLURM allocation, and a study on it: sbatch slurm-ray.sh study.yaml
# Adjust the lines with #SBATCH, and the path of the environment. Needs Ray 2.49 or newer.
#SBATCH --job-name=polytask-study
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --exclusive
#SBATCH --output=%x-%j.log
set -euo pipefail

study=${1:?usage: sbatch slurm-ray.sh STUDY}
source "$HOME/polytask/.venv/bin/activate"    # on a disk that all nodes see

# Other users of these nodes cannot connect to this Ray: it asks for a token (Ray 2.52 or newer), which only you can read.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$PWD/.ray-token-$SLURM_JOB_ID
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
(umask 077 && python -c 'import uuid; print(uuid.uuid4().hex, end="")' > "$RAY_AUTH_TOKEN_PATH")

# `ray symmetric-run` starts Ray on every node, runs the command on the first one, and stops Ray when it has ended.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}'):6379
srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" \
  ray symmetric-run --address "$address" --min-nodes "$SLURM_NNODES" --num-cpus 16 --num-gpus 4 -- \
  polytask compare "$study" --engine ray --address "$address" --cpus-per-cell 2 --gpus-per-cell 0.5

# Bulk prediction instead of a study: the same lines, with this as the last one.
#   polytask predict runs/recipe --input 'new/*.parquet' --output predicted --engine ray --address "$address"
