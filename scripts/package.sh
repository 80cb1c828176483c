#!/usr/bin/env bash
# package.sh [FOLDER]: builds the release and packs what `cmake --install` installs as FOLDER/dtrain-VERSION-linux-x86_64.tar.gz
# (FOLDER: build), with its SHA-256 beside it. Unpacked anywhere, it runs (docs/guide/install.md).
set -euo pipefail
umask 022  # others read what is unpacked
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -le 1 ] || { echo "usage: scripts/package.sh [FOLDER]" >&2; exit 2; }
folder=${1:-build}

scripts/build.sh installed_parts
version=$(sed -n 's/^project(dtrain VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=dtrain-$version-linux-$(uname -m)
mkdir -p "$folder"
staging=$(mktemp -d "$folder/package.XXXXXX")
trap 'rm -rf "$staging"' EXIT
cmake --install build/release --prefix "$staging/$name" >/dev/null
# Under its name only once it is whole.
tar -C "$staging" --owner=0 --group=0 --numeric-owner --sort=name -czf "$staging/archive" "$name"
mv "$staging/archive" "$folder/$name.tar.gz"
(cd "$folder" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
echo "package.sh: $folder/$name.tar.gz, $(du -h "$folder/$name.tar.gz" | cut -f1)"
