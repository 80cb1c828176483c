#!/usr/bin/env bash
# launch.sh PROGRAM [ARGUMENT...]: starts PROGRAM's ranks on this machine, as one node of a job, through dtrun. Call it on
# each node; the environment says which one that is:
#   NUM_NODES       nodes of the job                                    [1; within a SLURM step, its nodes]
#   NODE_RANK       which of them this is: 0 on the first, 1, ...       [of several nodes needed, but in a SLURM step]
#   MASTER_ADDR     address or name of node 0, as all nodes reach it    [the same]
#   MASTER_PORT     port of node 0 where the nodes meet                 [dtrun's own choice]
#   RANKS_PER_NODE  ranks on this node: a number, auto, gpu or cpu      [auto; within a SLURM step, its GPUs or cores]
#   DTRAIN_JOB_TOKEN or DTRAIN_JOB_TOKEN_FILE: the secret by which several nodes know each other (docs/internals/communication.md)
# The status is dtrun's (docs/guide/exit-status.md).
set -euo pipefail
wrong() {
  echo "launch.sh: $1" >&2
  exit 2
}
case ${1:-} in
  -h | --help) # the head of this file
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
    ;;
esac
[ $# != 0 ] || wrong "usage: [NUM_NODES=N NODE_RANK=R MASTER_ADDR=A MASTER_PORT=P] launch.sh PROGRAM [ARGUMENT...]"
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case $top in
  */share/dtrain) PATH=${top%/share/dtrain}/bin:$PATH ;; # where cmake --install has put this
  *) PATH=$top/build/release/bin:$PATH ;;
esac

options=()
if [ -z "${SLURM_STEP_ID:-}" ] || [ -n "${NUM_NODES:-}" ]; then
  options+=(--nnodes "${NUM_NODES:-1}")
  if [ "${NUM_NODES:-1}" != 1 ]; then
    [ -n "${NODE_RANK:-}" ] || wrong "NODE_RANK is not set; set it to 0 on the first node, 1 on the next ..."
    [ -n "${MASTER_ADDR:-}" ] || wrong "MASTER_ADDR is not set; set it to the first node's address"
    options+=(--node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" ${MASTER_PORT:+--master-port "$MASTER_PORT"})
  fi
fi
if [ -z "${SLURM_STEP_ID:-}" ] || [ -n "${RANKS_PER_NODE:-}" ]; then
  options+=(--nproc-per-node "${RANKS_PER_NODE:-auto}")
fi
exec dtrun "${options[@]}" -- "$@"
