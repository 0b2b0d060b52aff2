"""The shipped examples, planned offline as their pages tell people to."""

import re
from pathlib import Path

from llmgw.core.planner import PlanOptions, plan
from llmgw.core.resolving.resolve import resolve
from llmgw.core.show import render
from llmgw.engines.registry import ADAPTERS
from llmgw.manifests.folder import read_folder
from llmgw.manifests.load import load
from llmgw.model.plan import Plan
from llmgw.model.report import Observed
from tests.core.builders import COMMIT, KEY, NOW, empty_record

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGEST = re.compile(r"(?<=install-)[0-9a-f]{8}\b|(?<=-)[0-9a-f]{8}(?=-\d+\.\d)|(?<=/llmgw-)[0-9a-f]{12}\b")


NOBODY_ASKED = Observed(nodes={})


def planned(
    example: str, *, changed: dict[str, tuple[str, str]] | None = None, seen: Observed = NOBODY_ASKED
) -> Plan:
    """As in a pull request's check, offline unless something is ``seen``. ``changed``: file name -> (text, what stands there
    instead)."""
    files, links = read_folder(EXAMPLES / example, "manifests")
    for name, (old, new) in (changed or {}).items():
        (path,) = [path for path in files if path.endswith(name)]
        text = files[path].decode()
        assert old in text
        files[path] = text.replace(old, new).encode()
    wanted = resolve(load(files, commit=COMMIT, links=links, path="manifests"), key_id=KEY, adapters=ADAPTERS)
    options = PlanOptions(key_id=KEY, offline=seen is NOBODY_ASKED)
    return plan(wanted, empty_record(), seen, ADAPTERS, now=NOW, options=options)


def text_of(made: Plan) -> str:
    """Digests change with llmgw's version and are tested elsewhere."""
    return DIGEST.sub("DIGEST", render.plan_text(made, show_commands=True))
