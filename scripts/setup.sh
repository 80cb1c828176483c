#!/usr/bin/env bash
# Installs what dtrain needs to build and test on Debian 12: the packages of third_party/debian.txt and, into
# .deps/, the LibTorch of third_party/libtorch.txt. Installs only; a second call finds everything there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

missing_packages() {
  awk '!/^#/ && NF {print $1}' third_party/debian.txt | while read -r package; do
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

install_libtorch() {
  local stamp=.deps/libtorch/installed-from.txt
  if [ -f "$stamp" ] && cmp -s third_party/libtorch.txt "$stamp"; then return 0; fi
  echo "setup.sh: fetching LibTorch (540 MB)"
  rm -rf .deps/libtorch .deps/wheels
  mkdir -p .deps/libtorch .deps/wheels
  /usr/bin/python3 -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps \
    --only-binary=:all: --python-version 3.11 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --dest .deps/wheels -r third_party/libtorch.txt
  # The CPU build needs five libraries and the headers; the CUDA libraries of the wheel stay out.
  unzip -q .deps/wheels/torch-*.whl 'torch/include/*' 'torch/lib/libc10.so' 'torch/lib/libtorch_cpu.so' \
    'torch/lib/libgomp*' 'torch-*/licenses/*' 'torch-*/LICENSE' 'torch-*/NOTICE' -d .deps/libtorch 2>/dev/null || [ $? = 11 ]
  for wheel in .deps/wheels/nvidia_*.whl; do
    unzip -q "$wheel" 'nvidia/cu13/lib/libcudart.so*' 'nvidia/cu13/lib/libcupti.so*' -d .deps/libtorch 2>/dev/null || [ $? = 11 ]
  done
  for library in torch/lib/libc10.so torch/lib/libtorch_cpu.so nvidia/cu13/lib/libcudart.so.13 nvidia/cu13/lib/libcupti.so.13; do
    [ -f ".deps/libtorch/$library" ] || { echo "setup.sh: the wheels lack $library" >&2; exit 1; }
  done
  # fmt comes from Debian: the wheel's own copy of its headers must not shadow it.
  rm -rf .deps/libtorch/torch/include/fmt .deps/wheels
  cp third_party/libtorch.txt "$stamp"
}

install_packages
install_libtorch
