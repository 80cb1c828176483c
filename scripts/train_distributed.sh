#!/usr/bin/env bash
# train_distributed.sh [DTRAIN-FLAG...]: trains with dtrain on this machine as one node of a job. Call it on each node with
# the same flags, such as --config, --data, --strategy and --run-dir; the environment says which node this is: MASTER_ADDR,
# MASTER_PORT, NUM_NODES, NODE_RANK and RANKS_PER_NODE, as in the first lines of launch.sh. All nodes need the program, the
# data and, for checkpoints, one run folder that they share. The status is dtrun's (docs/guide/exit-status.md).
exec "$(dirname "${BASH_SOURCE[0]}")/launch.sh" dtrain "$@"
