"""Copies of llmgw with version numbers of their own, so that there is always a newer agent to upgrade to; and nobody who works
on the checkout meanwhile changes what is being tried."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import llmgw


@dataclass(slots=True)
class Versions:
    """The first is a copy of this one."""

    folder: Path
    made: int = 0

    @property
    def newest(self) -> Path:
        """To be put on Python's path."""
        return self.folder / str(self.made)

    def another(self) -> str:
        """Its version."""
        source = self.newest if self.made else Path(llmgw.__file__).parents[1]
        self.made += 1
        for name in ("llmgw", "schemas"):
            shutil.copytree(source / name, self.newest / name)
        file = self.newest / "llmgw" / "__init__.py"
        version = f"7.0.{self.made}"
        text, count = re.subn(r'__version__ = ".*"', f'__version__ = "{version}"', file.read_text())
        assert count == 1, f"{file} states no version"
        file.write_text(text)
        return version
