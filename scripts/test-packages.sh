#!/usr/bin/env bash
# Installs what the tests over SSH need: hosts in network namespaces, each with a real sshd. Only as root, and only where apt is;
# elsewhere those tests are skipped, each saying what it did not prove.
set -euo pipefail

declare -A package=([/usr/sbin/sshd]=openssh-server [ssh-keygen]=openssh-client [ip]=iproute2 [nft]=nftables [sudo]=sudo)
missing=()
for program in "${!package[@]}"; do
  PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
[ "${#missing[@]}" -gt 0 ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "tests over SSH will be skipped: they need root and ${missing[*]}" >&2
  exit 0
fi
echo "installing for the tests over SSH: ${missing[*]}" >&2
install() { DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null; }
# A package may start a daemon when it is installed; these are for the tests alone.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
install 2>/dev/null || { apt-get update -qq && install; } || echo "tests over SSH will be skipped: apt-get failed" >&2
