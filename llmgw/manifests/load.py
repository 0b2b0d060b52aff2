"""The files of a commit, or of a work tree, to Manifests. All or nothing: one bad file and nothing is loaded, since an
unreadable file must never look like a deletion."""

from collections.abc import Iterable, Mapping

from llmgw.manifests import decode, paths, schema, yamltext
from llmgw.model.manifest import Manifest, Manifests, NodeSpec
from llmgw.model.problems import InvalidError, Problem, Where


def load(
    files: Mapping[str, bytes],
    *,
    commit: str | None,
    links: Mapping[str, str] | None = None,
    path: str | None = None,
) -> Manifests:
    """Every manifest below ``path`` (default: see :func:`llmgw.manifests.paths.fleet_path`).

    ``files`` holds at least what :func:`llmgw.manifests.paths.may_be_needed` picks of the repository, by repository
    path; ``links`` its symbolic links. Raises InvalidError with all problems of all files.
    """
    folder = path if path is not None else paths.fleet_path([*files, *(links or {})])
    problems: list[Problem] = []
    manifests: list[Manifest] = []
    for name, real in sorted(_chosen(files, links or {}, folder, problems)):
        manifests.extend(_file(name, files[real], problems))
    problems.extend(_duplicates(manifests))
    texts: dict[str, str] = {}
    for manifest in manifests:
        problems.extend(_facts(manifest, files, links or {}, texts))
    if problems:
        raise InvalidError(tuple(sorted(problems, key=_order)))
    return _sorted(manifests, commit, texts)


def facts_paths(
    files: Mapping[str, bytes], *, links: Mapping[str, str] | None = None, path: str | None = None
) -> tuple[str, ...]:
    """Repository paths of the facts files that manifests point to, for who has read only the manifests so far. What is
    wrong is left for :func:`load` to tell."""
    folder = path if path is not None else paths.fleet_path([*files, *(links or {})])
    ignored: list[Problem] = []
    found: set[str] = set()
    for name, real in _chosen(files, links or {}, folder, ignored):
        if b"facts" not in files[real]:  # saves parsing most of a large fleet twice
            continue
        for manifest in _file(name, files[real], ignored):
            if wanted := facts_path(manifest):
                found.add(wanted)
    return tuple(sorted(found))


def _chosen(
    files: Mapping[str, bytes], links: Mapping[str, str], folder: str, problems: list[Problem]
) -> Iterable[tuple[str, str]]:
    """What to read: (path to show, path that holds the bytes)."""
    chosen = [(name, name) for name in files if paths.is_manifest(name, folder) and name not in links]
    for found in paths.linked_manifests(files, links, folder):
        if isinstance(found, Problem):
            problems.append(found)
        else:
            chosen.append(found)
    return chosen


def _file(name: str, data: bytes, problems: list[Problem]) -> list[Manifest]:
    documents, wrong = yamltext.read(name, data)
    problems.extend(wrong)
    manifests: list[Manifest] = []
    for document in documents:
        if found := schema.check(name, document):
            problems.extend(found)
            continue
        try:
            manifests.append(decode.manifest(name, document))
        except InvalidError as invalid:
            problems.extend(invalid.problems)
    return manifests


def _duplicates(manifests: list[Manifest]) -> Iterable[Problem]:
    first: dict[tuple[str, str], Manifest] = {}
    fleet: Manifest | None = None
    for manifest in manifests:
        if manifest.kind == "Fleet":
            if fleet is not None:
                yield Problem(
                    what=f"a second Fleet; the first is at {fleet.where}",
                    instead="keep one",
                    where=manifest.at("kind"),
                )
            fleet = fleet or manifest
            continue
        key = (manifest.kind, manifest.metadata.name)
        if other := first.get(key):
            yield Problem(
                what=f"a second {manifest.kind} {manifest.metadata.name}; the first is at {other.where}",
                instead="rename or remove one",
                where=manifest.at("metadata.name"),
            )
        first.setdefault(key, manifest)


def _facts(
    manifest: Manifest, files: Mapping[str, bytes], links: Mapping[str, str], texts: dict[str, str]
) -> Iterable[Problem]:
    """The file that ``local.facts`` names, into ``texts`` under its repository path."""
    if not isinstance(manifest.spec, NodeSpec) or not manifest.spec.local or not manifest.spec.local.facts:
        return
    written, where = manifest.spec.local.facts, manifest.at("spec.local.facts")
    if not written.endswith(paths.FACTS_SUFFIX):
        yield Problem(what=f"spec.local.facts names {written}", instead="name a .json file", where=where)
        return
    path = facts_path(manifest)
    real = paths.Links(targets=links).resolve(path) if path is not None else None
    if path is None or real is None:
        what = f"spec.local.facts names {written}, which lies outside the repository"
        yield Problem(what=what, instead="put the file beside the manifest", where=where)
    elif real not in files:
        what = f"spec.local.facts names {written}, and there is no file {path}"
        yield Problem(what=what, instead="correct the path: it is relative to this manifest", where=where)
    elif len(data := files[real]) > yamltext.MAX_BYTES:
        what = f"the file has {len(data):,} bytes, more than {yamltext.MAX_BYTES:,}"
        yield Problem(what=what, instead="facts of one node take a few kB", where=Where(file=path))
    else:
        try:
            texts[path] = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            yield Problem(what="the file is not UTF-8", instead="save it as UTF-8", where=Where(file=path))


def facts_path(manifest: Manifest) -> str | None:
    """The repository path of a node's facts file: the key in ``Manifests.texts``. None: none, or outside."""
    spec = manifest.spec
    if not isinstance(spec, NodeSpec) or spec.local is None or spec.local.facts is None:
        return None
    return paths.join(paths.parent(manifest.where.file), spec.local.facts)


def _sorted(manifests: list[Manifest], commit: str | None, texts: Mapping[str, str]) -> Manifests:
    def of(kind: str) -> tuple[Manifest, ...]:
        chosen = (manifest for manifest in manifests if manifest.kind == kind)
        return tuple(sorted(chosen, key=lambda manifest: manifest.metadata.name))

    fleet = of("Fleet")
    return Manifests(
        commit=commit,
        fleet=fleet[0] if fleet else None,
        nodes=of("Node"),
        profiles=of("Profile"),
        models=of("Model"),
        texts=texts,
    )


def _order(problem: Problem) -> tuple[Where, str]:
    return problem.where or Where(file=""), problem.what
