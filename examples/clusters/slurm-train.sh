#!/usr/bin/env bash
# Trains one recipe on the GPUs of several SLURM nodes: sbatch slurm-train.sh recipe.yaml
# A run that the time limit has stopped continues with: sbatch slurm-train.sh recipe.yaml --resume
# Adjust the lines with #SBATCH, and the path of the environment.
#SBATCH --job-name=polytask-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=%x-%j.log
set -euo pipefail

: "${1:?usage: sbatch slurm-train.sh RECIPE [OPTIONS of polytask train]}"
source "$HOME/polytask/.venv/bin/activate"    # on a disk that all nodes see

# One torchrun on each node; the first node is where they meet.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / 4))    # 4 processes share the cores of a node
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110    # seconds for the last checkpoint, within those of --signal; else 30
srun torchrun \
  --nnodes "$SLURM_NNODES" --nproc-per-node 4 \
  --rdzv-backend c10d --rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID" \
  -m polytask train "$@"
