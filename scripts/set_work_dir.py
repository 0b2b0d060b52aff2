"""Write a work directory into the node manifest in a folder: set_work_dir.py FOLDER DIRECTORY.

Quoted, so that any path will do, also one with spaces or with characters that mean something to YAML or sed.
"""

import json
import re
import sys
from pathlib import Path

folder, directory = Path(sys.argv[1]), sys.argv[2]
for file in sorted(folder.glob("*.yaml")):
    text = file.read_text(encoding="utf-8")
    changed = re.sub(
        r"(?m)^(\s*workDir: ).*$", lambda line: line[1] + json.dumps(directory, ensure_ascii=False), text
    )
    if changed != text:
        file.write_text(changed, encoding="utf-8")
