#!/usr/bin/env bash
# The README's first command in a bare Debian with pip's own defaults: makes a root file system, enters it with an empty
# environment, and trains 20 steps of the quickstart. From the host it uses only the settings of the network: name
# resolution, certificates, apt's mirror and proxy.
#
#   COLOSSAL_BARE_ROOT=1 tests/bare/first_command.sh [suite] [command of colossal.sh...]
#
# Without COLOSSAL_BARE_ROOT, root rights or mmdebstrap it ends with status 77, which ctest reports as skipped.
set -euo pipefail
source_dir=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
suite=${1:-bookworm}
shift || true
command=${*:-train examples/quickstart.toml --training.steps=20}

skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
[ -n "${COLOSSAL_BARE_ROOT:-}" ] || skip "it builds in a bare root for minutes; set COLOSSAL_BARE_ROOT=1 to run it"
[ "$(id -u)" -eq 0 ] || skip "a root file system is made by root only"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is not there; apt-get install mmdebstrap"
unshare --mount true || skip "this machine allows no mount namespaces"

mkdir -p "$source_dir/build"
root=$(mktemp -d "$source_dir/build/bare-root.XXXXXX")
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
mirror=$(apt-get indextargets --format '$(SITE)' 'Origin: Debian' 2>/dev/null | grep -v -- '-security' |
  head -n 1) || true
began=$SECONDS
mmdebstrap --quiet --variant=minbase --include=build-essential,cmake,git,python3,python3-venv,ca-certificates \
  "$suite" "$root" "${mirror:-http://deb.debian.org/debian}"
echo "a bare $suite: $((SECONDS - began)) s"
apt-config dump | grep -i '^Acquire::https\?::proxy' >"$root/etc/apt/apt.conf.d/90proxy" || true
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
cp -L "$certificates" "$root/etc/ssl/certs/ca-certificates.crt"
mkdir "$root/colossal"
git -C "$source_dir" ls-files -z | tar -C "$source_dir" --null --files-from=- --create |
  tar -C "$root/colossal" --extract

# Runs a command in its own namespaces, whose mounts end with the command.
inside() {  # arguments: options of unshare, command
  local options=$1
  shift
  unshare --mount $options bash -c '
    mount --make-rprivate / && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev"
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
      chroot "$0" bash -c "cd /colossal && $1"' "$root" "$*"
}

began=$SECONDS
status=0
inside "" "./colossal.sh $command" >"$root/first.log" 2>&1 || status=$?
echo "the first command: $((SECONDS - began)) s"
cat "$root/first.log"
du -sm "$root/colossal/.venv" "$root/colossal/build" 2>/dev/null || true
if [ $status -ne 0 ]; then
  tail -n 40 "$root/colossal/build/setup.log"
  fail "the first command ended with status $status"
fi

plan=$(grep -n 'download LibTorch .* GB in .venv' "$root/first.log" | cut -d: -f1)
pip=$(grep -n '^installing LibTorch' "$root/first.log" | cut -d: -f1)
[ -n "$plan" ] && [ -n "$pip" ] && [ "$plan" -lt "$pip" ] || fail "the sizes must be printed before pip starts"
case $command in
  train*) [ -s "$root/colossal/runs/quickstart/metrics.jsonl" ] || fail "nothing was trained" ;;
esac
size=$(du -sm "$root/colossal/.venv" | cut -f1)
[ -e /proc/driver/nvidia/version ] || [ "$size" -le 2048 ] ||
  fail ".venv must take at most 2048 MiB on a machine without a GPU: got $size"

# Without a network: a second start downloads nothing.
began=$SECONDS
said=$(inside "--net" "./colossal.sh --version 2>&1") || fail "the second start failed: $said"
seconds=$((SECONDS - began))
[[ $said == colossal\ * ]] || fail "the second start printed more than the version: $said"
[ $seconds -lt 10 ] || fail "a second start must take less than 10 s: got $seconds"
echo "a second start without a network: $seconds s"
