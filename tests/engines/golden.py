"""A launch as people read it, for golden files: every word of the command line, the environment, the probes."""

import shlex

from llmgw.core.adapter import Placed
from llmgw.engines.registry import ADAPTERS
from llmgw.model.launch import HttpProbe, LaunchSpec, Process


def text_of(placed: Placed) -> str:
    """Digests are left out: they change with llmgw's version and are tested elsewhere."""
    adapter = ADAPTERS[placed.model.profile.engine.name]
    node = placed.nodes[placed.ranks[0].node]
    lines = [f"need: {adapter.need(placed.model).sum}"]
    lines += [f"warning: {warning}" for warning in adapter.warnings(placed.model)]
    if install := adapter.install(placed.model, node, placed.pip):
        wanted = ", ".join(install.requirements) or "no packages"
        programs = "".join(f"; {p.runtime} as bin/{p.install_as}" for p in install.programs)
        source = f" from {install.index_url or install.wheel_dir}" if placed.pip.index_url else ""
        lines.append(f"install: {install.engine} {install.version}: {wanted}{source}{programs}")
    if fetch := adapter.fetch(placed.model, placed.pip):
        lines.append(f"fetch: {fetch.description}, sha256 {(fetch.sha256 or '')[:8]}…")
    for spec in adapter.launch(placed):
        lines += ["", *_shard(spec)]
    return "\n".join(lines) + "\n"


def _shard(spec: LaunchSpec) -> list[str]:
    lines = [f"{spec.shard}: rank {spec.rank} of {spec.ranks}, leader {spec.leader_address}"]
    for process in spec.processes:
        lines += [f"process {process.name}", *_command(process)]
        if process.wait_for:
            at = process.wait_for
            lines.append(f"  waits for {at.host} port {at.port}, {at.timeout:g} s")
        lines += [f"  file {file.path}: {file.content!r}" for file in process.files]
        lines += ["environment", *(f"  {name}={value}" for name, value in process.env.items())]
    lines += ["probes", *_probes(spec)]
    claims = [f"{gpu.uuid} {gpu.memory or 'whole'}" for gpu in spec.claims.gpus]
    claims += [f"{spec.claims.memory} bytes of memory", f"ports {list(spec.claims.ports)}"]
    lines += ["claims", *(f"  {claim}" for claim in claims)]
    lines += _lora(spec)
    lines.append(f"needs: {', '.join(job.partition('-')[0] for job in spec.needs) or 'no job'}")
    lines.append(f"engine: {spec.engine_path or 'installed'}; weights: {spec.weights_path or _fetched(spec)}")
    lines.append(f"secrets: {', '.join(spec.secrets) or 'none'}")
    lines.append(f"expects: address {spec.expect.interface_address}, {len(spec.expect.gpus)} GPUs")
    lines += [f"  GID {place} {gid}" for place, gid in spec.expect.gids.items()]
    times, restart = spec.timeouts, spec.restart
    lines.append(f"times: startup {times.startup:g} s, stop {times.stop:g} s, drain {times.drain:g} s")
    lines.append(f"restarts: {'by the agent' if restart.local else 'by the controller'}")
    return lines


def _lora(spec: LaunchSpec) -> list[str]:
    if (lora := spec.lora) is None:
        return []
    lines = [f"adapters: {lora.form or 'of any form'}, listed by {_probe(lora.listing.probe)}"]
    lines += [
        f"  {adapter.name}: rank {adapter.rank}, at {adapter.path or 'what is fetched'}, asked by {adapter.send}"
        for adapter in lora.adapters
    ]
    if (calls := lora.calls) is not None:
        lines.append(f"  at most {calls.most}, of ranks up to {calls.highest_rank}")
        lines += [f"  load: {_probe(calls.load)}", f"  unload: {_probe(calls.unload)}"]
    return lines


def _fetched(spec: LaunchSpec) -> str:
    return "fetched" if spec.weights else "none"


def _command(process: Process) -> list[str]:
    lines: list[str] = []
    for word in process.argv:
        quoted = shlex.quote(word)
        if not lines or word.startswith("-"):
            lines.append(f"  {quoted}")
        else:
            lines[-1] += f" {quoted}"
    return lines


def _probes(spec: LaunchSpec) -> list[str]:
    probes = spec.probes
    if probes.port is None:
        return [f"  none: ready when up for {spec.timeouts.alive_grace:g} s"]
    lines = [f"  at {probes.host} port {probes.port}"]
    lines += [f"  ready: {_probe(probe)}" for probe in probes.ready]
    lines.append(f"  token: {_probe(probes.token) if probes.token else 'none'}")
    lines.append(f"  alive: {_probe(probes.alive) if probes.alive else 'none'}")
    if metric := probes.in_flight:
        how = " with the key" if metric.authorized else ""
        lines.append(f"  in flight: {' + '.join(metric.names)} of {metric.path}{how}")
    return lines


def _probe(probe: HttpProbe) -> str:
    text = f"{probe.method} {probe.path}"
    text += f" {probe.body}" if probe.body else ""
    text += " with the key" if probe.authorized else ""
    return text + (f", must hold {probe.contains}" if probe.contains else "")
