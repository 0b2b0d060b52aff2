#!/bin/bash
# Process 1 of a node: makes its view of the file system, starts what starts at boot, and becomes its sshd, which reaps
# orphans. Runs in new mount, pid, uts and ipc namespaces, inside the node's network namespace.
#   $1 the node's directory   $2 its host name   $3… paths that are empty in the node
set -eu
node=$1 name=$2
shift 2
view=$node/view

hostname "$name"
mkdir -p "$node/disk/upper" "$node/disk/work" "$node/disk/root" "$view"
# The machine's own root below, whatever the node writes above: on disk, so that it outlives a power cut.
mount -t overlay overlay -o "lowerdir=/,upperdir=$node/disk/upper,workdir=$node/disk/work" "$view"
mkdir -p "$view/etc/llnode" "$view/.old"
cp "$node"/etc/* "$view/etc/llnode/"
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$name" >"$view/etc/hosts"
printf '%s\n' "$name" >"$view/etc/hostname"
: >"$view/etc/resolv.conf"

mount -t proc proc "$view/proc"
mount --rbind /dev "$view/dev"
mount -t tmpfs tmpfs "$view/dev/shm"
mount -t sysfs sysfs "$view/sys"
mount -t tmpfs -o mode=755 tmpfs "$view/run"
mount -t tmpfs -o mode=1777 tmpfs "$view/tmp"
mkdir -p "$view/run/sshd" "$view/run/lock"
mount --bind "$node/disk/root" "$view/root"
for path in "$@"; do
  [ "$path" = /root ] || [ ! -d "$view$path" ] || mount -t tmpfs -o size=64k,mode=755 tmpfs "$view$path"
done
while IFS=$'\t' read -r here there; do
  mkdir -p "$view$there"
  mount --bind "$here" "$view$there"
  mount -o remount,bind,ro "$view$there"
done <"$node/etc/shares"
cat /proc/sys/kernel/random/uuid >"$view/run/boot_id"
mount --bind "$view/run/boot_id" "$view/proc/sys/kernel/random/boot_id"

cd "$view"
pivot_root . .old
cd /
umount -l /.old

# What a boot starts: rc.local, and the init scripts that were installed in this node. The machine's own are left alone.
if [ -x /etc/rc.local ]; then /etc/rc.local </dev/null >/var/log/boot.log 2>&1 || true; fi
for script in /etc/rc2.d/S*; do
  [ -e "$script" ] || continue
  case " $(cat /etc/llnode/own-scripts) " in *" ${script##*/} "*) continue ;; esac
  "$script" start </dev/null >>/var/log/boot.log 2>&1 || true
done
exec /usr/sbin/sshd -D -e -f /etc/llnode/sshd_config 2>>/var/log/sshd.log
