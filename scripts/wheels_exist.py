"""Exit 0 when the wheels that the manifests in a folder name can be had for this machine, 1 when not.

Asks pip to resolve them without installing; only the index is asked, or the wheel directory that pip is set up with.
"""

import re
import subprocess
import sys
from pathlib import Path

text = "\n".join(path.read_text() for path in sorted(Path(sys.argv[1]).glob("*.yaml")))
wanted = re.findall(r"requirement:\s*[\"']?([A-Za-z0-9._-]+==[A-Za-z0-9.]+)", text)
wanted += [
    f"xllamacpp=={version}" for version in re.findall(r"name:\s*llamacpp,\s*version:\s*[\"']([^\"']+)", text)
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
sys.exit(subprocess.run([*command, *wanted], check=False).returncode != 0)
