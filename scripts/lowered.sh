#!/usr/bin/env bash
# lowered.sh avx2|baseline COMMAND...: runs a command as a CPU without AVX-512, or one without AVX as well, would: limits the
# instructions of ATen and our kernels, oneDNN, MKL and glibc. scripts/soak.sh lowered runs every test so.
set -euo pipefail

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

[ $# -ge 2 ] || usage
case $1 in
  avx2)
    export ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
    missing=-AVX512F,-AVX512VL,-AVX512BW
    ;;
  baseline)
    export ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2
    missing=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX,-FMA,-FMA4
    ;;
  *) usage ;;
esac
# glibc's elementary functions have variants with fused multiply-adds.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:+$GLIBC_TUNABLES:}glibc.cpu.hwcaps=$missing
shift
exec "$@"
