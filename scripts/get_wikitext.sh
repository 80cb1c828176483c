#!/usr/bin/env bash
# get_wikitext.sh 2|103 FOLDER: fetches the raw files of WikiText-2 (4.7 MB) or WikiText-103 (192 MB) and puts wiki.train.raw,
# wiki.valid.raw and wiki.test.raw into FOLDER. The archive must have the SHA-256 that is written here. WIKITEXT_URL names
# another place to fetch from. Then: dtrain data prepare --dataset wikitext FOLDER --output TOKENS
set -euo pipefail

fail() {
  echo "get_wikitext.sh: error: $1" >&2
  exit "$2"
}

usage="usage: get_wikitext.sh 2|103 FOLDER"
[ $# -eq 2 ] || fail "$usage" 2
case $1 in
  2) checksum=ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11 ;;
  103) checksum=91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794 ;;
  *) fail "$usage" 2 ;;
esac
folder=$2
url=${WIKITEXT_URL:-https://wikitext.smerity.com/wikitext-$1-raw-v1.zip}
for program in curl unzip sha256sum; do
  command -v "$program" >/dev/null || fail "$program is missing: apt-get install $program" 2
done

mkdir -p "$folder"
work=$(mktemp -d "$folder/.fetching-XXXXXX")
trap 'rm -rf "$work"' EXIT
curl --fail --silent --show-error --location --output "$work/archive.zip" "$url" ||
  fail "$url cannot be fetched; where there is another copy, name it: WIKITEXT_URL=..." 3
found=$(sha256sum "$work/archive.zip" | cut -d ' ' -f 1)
[ "$found" = "$checksum" ] || fail "$url has the SHA-256 $found, expected $checksum; nothing was unpacked" 3
unzip -q -j "$work/archive.zip" '*/wiki.train.raw' '*/wiki.valid.raw' '*/wiki.test.raw' -d "$work"
mv "$work"/wiki.*.raw "$folder"
echo "$folder: wiki.train.raw, wiki.valid.raw, wiki.test.raw"
