#!/usr/bin/env bash
# soak_fresh.sh: both of README's commands, as root, from a clean checkout of HEAD in a minimal Debian 12 that has nothing else,
# then the tests once more as another user. Prints the time, disk and memory of each. The root is a folder that mmdebstrap makes
# and chroot enters; of this machine it gets the package sources, certificates and pip's configuration. Status 77: this machine
# cannot make one. See scripts/soak.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ "$(id -u)" != 0 ] || ! command -v mmdebstrap >/dev/null; then
  echo "fresh: skipped: a minimal Debian takes root and mmdebstrap (apt-get install mmdebstrap)"
  exit 77
fi
if [ "${1:-}" != inside ]; then  # mounts of its own, which end with it
  exec unshare --mount --propagation private "$PWD/scripts/soak/soak_fresh.sh" inside
fi

root=$(mktemp -d "${TMPDIR:-/var/tmp}/dtrain-fresh.XXXXXX")
chmod 755 "$root"

make_root() {
  local sources=()
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
    [ ! -s "$file" ] || sources+=("$file")
  done
  mmdebstrap --quiet --variant=minbase bookworm "$root" "${sources[@]}"
  cp --dereference /etc/resolv.conf /etc/hosts "$root/etc/"
  [ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/"
  mkdir -p "$root/etc/ssl/certs" "$root/usr/local/share"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  cp -r /usr/local/share/ca-certificates "$root/usr/local/share/"
  mount --bind "$root" "$root"  # programs that make mount namespaces expect / to be a mount
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/run"
  git clone -q . "$root/dtrain"
  echo "fresh: a minimal Debian with commit $(git rev-parse --short HEAD), $(du -sxm "$root" | cut -f1) MiB"
}

used_mib() { awk '/^MemTotal/ {all = $2} /^MemAvailable/ {print int((all - $2) / 1024)}' /proc/meminfo; }

watch_memory() {
  local before most=0 now
  before=$(used_mib)
  while sleep 1; do
    now=$(used_mib)
    if [ "$now" -gt "$most" ]; then
      most=$now
      echo $((most - before)) >"$root/memory"
    fi
  done
}

# inside USER COMMAND...: in the root's checkout, with pip's variables and no others of this machine.
inside() {
  local user=$1 home=/root name settings=()
  shift
  [ "$user" = root ] || home=/home/$user
  for name in $(compgen -e); do
    case $name in PIP_* | SSL_CERT_* | REQUESTS_CA_BUNDLE | *_proxy | *_PROXY) settings+=("$name=${!name}") ;; esac
  done
  chroot --userspec="$user" "$root" env -i HOME="$home" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    "${settings[@]}" sh -c 'cd /dtrain && exec "$@"' sh "$@"
}

# stage NAME USER COMMAND...: runs it and prints what it took.
stage() {
  local name=$1 begin=$SECONDS outcome=0 watcher
  shift
  echo "fresh: $name begins"
  watch_memory &
  watcher=$!
  inside "$@" 2>&1 || outcome=$?
  kill "$watcher"
  echo "fresh: $name: status $outcome, $((SECONDS - begin)) s, $(du -sxm "$root" | cut -f1) MiB of disk, $(cat "$root/memory") MiB of memory at most"
  [ "$outcome" = 0 ] || failed=1
}

failed=0
make_root
stage "README's first command" root ./scripts/quickstart.sh
stage "README's second command" root env CI=true ./scripts/test.sh
chroot "$root" sh -c 'useradd --create-home tester && chown -R tester: /dtrain'
stage "the tests as another user" tester ./scripts/test.sh
if [ "$failed" = 0 ]; then
  umount -l "$root"/{proc,sys,dev,run} "$root"
  rm -rf --one-file-system "$root"
else
  echo "fresh: failed; what is left lies in $root"
fi
exit "$failed"
