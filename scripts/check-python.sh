#!/usr/bin/env bash
# Says what is missing to make a virtual environment here, with the line that installs it.
set -euo pipefail

python=${1:-}
if [ -z "$python" ]; then
  echo "llmgw's controller needs Python 3.11 or newer, and none was found on PATH." >&2
  echo "Install one:  sudo apt install python3 python3-venv    (or name yours: make demo PYTHON=/path/to/python3.12)" >&2
  exit 1
fi
if ! command -v "$python" >/dev/null; then
  echo "There is no $python: name a Python 3.11 or newer, as in: make demo PYTHON=/path/to/python3.12" >&2
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "$python is $("$python" --version 2>&1), and llmgw's controller needs 3.11 or newer: name another, as in:" >&2
  echo "  make demo PYTHON=/path/to/python3.12" >&2
  exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  echo "$python can't make virtual environments: its venv module is missing." >&2
  echo "Install it:  sudo apt install python${version}-venv    (or: sudo apt install python3-venv)" >&2
  exit 1
fi
if ! command -v git >/dev/null; then
  echo "git is missing: the manifests and the record live in it." >&2
  echo "Install it:  sudo apt install git" >&2
  exit 1
fi
