#!/usr/bin/env bash
# setup.sh [--dev] [--cuda]: installs what dtrain needs to build and run on Debian 12: the packages of third_party/debian.txt and,
# into .deps/, the LibTorch of third_party/libtorch.txt. With --dev also what only tests need: the packages of
# third_party/debian-dev.txt and .deps/python/, a Python that reads models and checkpoints with the packages of
# third_party/python.txt and with PyTorch. With --cuda also what training on NVIDIA's GPUs needs at run time: LibTorch's
# libraries for CUDA and the wheels of third_party/cuda.txt. Installs only; a second call finds everything there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dev='' cuda=''
for argument in "$@"; do
  case $argument in
    --dev) dev=yes ;;
    --cuda) cuda=yes ;;
    *) echo "usage: scripts/setup.sh [--dev] [--cuda]" >&2; exit 2 ;;
  esac
done

missing_packages() {
  awk '!/^#/ && NF {print $1}' third_party/debian.txt ${dev:+third_party/debian-dev.txt} | while read -r package; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || echo "$package"
  done
}

install_packages() {
  local missing
  missing=$(missing_packages | tr '\n' ' ')
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    echo "setup.sh: these Debian packages are missing; install them as root, then run this again:" >&2
    echo "  apt-get install $missing" >&2
    exit 2
  fi
  echo "setup.sh: installing $missing"
  apt-get update -q >/dev/null
  # shellcheck disable=SC2086  # one word a package
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >/dev/null
}

# fetch LIST PATTERN: the wheels of third_party/LIST that begin so, into .deps/wheels.
fetch() {
  mkdir -p .deps/wheels
  grep "^$2" "third_party/$1" >.deps/wheels/wanted.txt
  /usr/bin/python3 -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps \
    --only-binary=:all: --python-version 3.11 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_18_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --dest .deps/wheels -r .deps/wheels/wanted.txt
}

is_installed() { cmp -s "$1" "$2"; }

install_libtorch() {
  local stamp=.deps/libtorch/installed-from.txt
  if is_installed third_party/libtorch.txt "$stamp"; then return 0; fi
  echo "setup.sh: fetching LibTorch (540 MB)"
  rm -rf .deps/libtorch .deps/wheels .deps/python
  mkdir -p .deps/libtorch
  fetch libtorch.txt '[a-z]'
  # The CPU build needs five libraries and the headers; the CUDA libraries of the wheel stay out.
  unzip -q .deps/wheels/torch-*.whl 'torch/include/*' 'torch/lib/libc10.so' 'torch/lib/libtorch_cpu.so' \
    'torch/lib/libgomp*' 'torch-*/licenses/*' 'torch-*/LICENSE' 'torch-*/NOTICE' -d .deps/libtorch 2>/dev/null || [ $? = 11 ]
  for wheel in .deps/wheels/nvidia_*.whl; do
    unzip -q "$wheel" 'nvidia/cu13/lib/libcudart.so*' 'nvidia/cu13/lib/libcupti.so*' \
      'nvidia_*.dist-info/*icense*' -d .deps/libtorch 2>/dev/null || [ $? = 11 ]
  done
  for library in torch/lib/libc10.so torch/lib/libtorch_cpu.so nvidia/cu13/lib/libcudart.so.13 nvidia/cu13/lib/libcupti.so.13; do
    [ -f ".deps/libtorch/$library" ] || { echo "setup.sh: the wheels lack $library" >&2; exit 1; }
  done
  # fmt comes from Debian: the wheel's own copy of its headers must not shadow it.
  rm -rf .deps/libtorch/torch/include/fmt
  cp third_party/libtorch.txt "$stamp"
}

# The rest of the torch wheel, unpacked beside its LibTorch. Its libraries name CUDA's, of which nothing is called
# without a GPU: empty ones stand in for those 2 GB, and Python is told to look functions up when they are called.
unpack_torch() {
  compgen -G '.deps/wheels/torch-*.whl' >/dev/null || fetch libtorch.txt torch
  unzip -q -n .deps/wheels/torch-*.whl 'torch/*' 'torchgen/*' 'functorch/*' \
    -x 'torch/include/*' 'torch/bin/p*' 'torch/lib/libtorch_cuda_linalg.so' -d .deps/libtorch
  local library lib=.deps/libtorch/torch/lib cuda=.deps/libtorch/nvidia/cu13/lib
  for library in "$lib"/libtorch_{python,cuda,nvshmem}.so; do readelf -d "$library"; done |
    sed -n 's/.*(NEEDED).*\[\(lib\(cu\|nccl\|nvshmem\).*\)\]/\1/p' | sort -u | while read -r library; do
    [ -e "$cuda/$library" ] || cc -shared -nostdlib -Wl,-soname,"$library" -o "$cuda/$library" -x c /dev/null
  done
}

install_python() {
  local stamp=.deps/python/installed-from.txt
  if is_installed third_party/python.txt "$stamp"; then return 0; fi
  echo "setup.sh: making .deps/python"
  rm -rf .deps/python
  /usr/bin/python3 -m venv .deps/python
  .deps/python/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
    --only-binary=:all: -r third_party/python.txt
  unpack_torch
  printf '%s\n' 'import os, sys; sys.setdlopenflags(os.RTLD_LAZY)' ../../../../libtorch \
    >.deps/python/lib/python3.11/site-packages/libtorch.pth
  # Python keeps what it has compiled here, whatever the environment says: each import of PyTorch would compile for seconds.
  PYTHONDONTWRITEBYTECODE='' .deps/python/bin/python -c 'import torch._dynamo, torch.distributed.checkpoint'
  cp third_party/python.txt "$stamp"
}

# Beside LibTorch, where its libraries look for each other. What --dev put there to stand in for some of them goes.
install_cuda() {
  local stamp=.deps/libtorch/cuda-from.txt
  if is_installed third_party/cuda.txt "$stamp"; then return 0; fi
  echo "setup.sh: fetching the libraries for CUDA (2.2 GB)"
  compgen -G '.deps/wheels/torch-*.whl' >/dev/null || fetch libtorch.txt torch
  fetch cuda.txt '[a-z]'
  find .deps/libtorch/nvidia/cu13/lib -name 'lib*.so.*' -size -24k -delete
  unzip -q -o .deps/wheels/torch-*.whl 'torch/lib/lib*_cuda.so' 'torch/lib/libtorch_nvshmem.so' 'torch/lib/libcaffe2_nvrtc.so' \
    -d .deps/libtorch
  local wheel
  while read -r wheel; do
    unzip -q -o .deps/wheels/"${wheel//-/_}"-*.whl 'nvidia/*/lib/*.so*' -d .deps/libtorch
  done < <(sed -n 's/^\([a-z0-9-]*\)==.*/\1/p' third_party/cuda.txt)
  cp third_party/cuda.txt "$stamp"
}

install_packages
install_libtorch
[ -z "$cuda" ] || install_cuda
[ -z "$dev" ] || install_python
rm -rf .deps/wheels
