"""Saved plans: exact, private, fresh, used once."""

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from llmgw.controller.passes.links import Links
from llmgw.controller.passes.prepare import Wish, prepare
from llmgw.controller.passes.saved import SavedPlan, document, read, save, wish_of, with_wish, write_private
from llmgw.model.plan import Plan
from llmgw.model.problems import StaleError, StalledError
from tests.controller.passes.pretend import Model, World

NEWEST = Wish()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def planned(world: World, wish: Wish = NEWEST) -> Plan:
    links = Links({"local": world.transport})
    try:
        return with_wish((await prepare(world.fleet(), wish, links)).plan, wish)
    finally:
        await links.close()


async def saved(world: World, folder: Path, wish: Wish = NEWEST) -> SavedPlan:
    path = folder / "plan.json"
    save(await planned(world, wish), path)
    return read(path)


def test_a_saved_plan_is_read_back_as_it_was_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        made = await planned(world)
        path = tmp_path / "plan.json"
        save(made, path)
        assert read(path).plan == made
        assert path.stat().st_mode & 0o777 == 0o600

    run(main())
    assert [it.name for it in tmp_path.iterdir()] == ["plan.json"], "a temporary file was left behind"


def test_what_was_allowed_when_planning_is_allowed_when_applying(tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        wish = Wish(commit=world.branch.tip, allow_prune=True)
        assert wish_of(await saved(world, tmp_path, wish)) == wish
        assert wish_of(await saved(world, tmp_path)) == Wish()

    run(main())


def test_applying_it_does_exactly_that_and_only_once(tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        kept = await saved(world, tmp_path)
        result = await world.apply(saved=kept)
        assert result.plan == kept.plan
        assert result.record.spent_plans == (kept.digest,)
        with pytest.raises(StaleError, match="used once"):
            await world.apply(saved=kept)
        assert world.commands.count("start") == 1

    run(main())


def test_a_record_that_moved_makes_it_stale_and_names_who_moved_it(tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        world.branch.commit_models(Model(replicas=2))
        kept = await saved(world, tmp_path)
        await world.apply("bob@laptop")
        with pytest.raises(StaleError, match=r"serial 1, and the record is at 2 .*bob@laptop"):
            await world.apply(saved=kept)

    run(main())


def test_a_newer_commit_makes_it_stale_unless_its_commit_was_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        kept = await saved(world, tmp_path)
        pinned = await saved(world, tmp_path, Wish(commit=world.branch.tip))
        world.branch.commit_models(Model(replicas=2))
        with pytest.raises(StaleError, match="the branch has moved"):
            await world.apply(saved=kept)
        assert (await world.apply(saved=pinned, wish=wish_of(pinned))).outcome is not None

    run(main())


def test_nodes_that_changed_make_it_stale_and_what_changed_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        world.branch.commit_models(Model(replicas=2))
        kept = await saved(world, tmp_path)
        (name,) = world.agents["gpu01"].shards
        world.agents["gpu01"]._set(name, "failed", lines=("boom",), error="exited with 1")
        with pytest.raises(StaleError, match=r"the nodes have changed.*chat"):
            await world.apply(saved=kept)

    run(main())


def test_a_heartbeat_does_not_make_it_stale(tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        world.branch.commit_models(Model(replicas=2))
        kept = await saved(world, tmp_path)
        world.clock.advance(3600)
        world.agents["gpu01"].note("shard-state", "chat", "still ready")
        assert (await world.apply(saved=kept)).outcome is not None

    run(main())


def test_offline_and_worktree_plans_can_be_read_but_not_applied(tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        kept = await saved(world, tmp_path, Wish(offline=True))
        with pytest.raises(StalledError, match="offline"):
            await world.apply(saved=kept)
        assert not world.commands

    run(main())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no plan that `llmgw plan --out` saved"),
        (
            "repo: /srv/fleet\n",
            "plan.json is no plan that `llmgw plan --out` saved: give the file that it wrote",
        ),
        ("[]", "is no plan that `llmgw plan --out` saved"),
        ('{"valid": true}', "is no plan that `llmgw plan --out` saved"),
        ('{"formatVersion": 99}', "format version 99"),
        ('{"formatVersion": 1, "basis": 3}', "is no plan"),
        ("[" * 100_000, "is no plan that `llmgw plan --out` saved"),
    ],
)
def test_what_is_no_plan_is_refused_with_a_reason(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(StalledError, match=said):
        read(path)


def test_an_edited_plan_with_a_field_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        content = document(await planned(World()))
        content["steps_"] = []
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(content))
        with pytest.raises(StalledError, match="steps_"):
            read(path)

    run(main())


def test_a_file_that_can_not_be_written_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StalledError, match="could not write"):
        write_private(tmp_path / "missing" / "x", b"x")
    target = tmp_path / "folder"
    target.mkdir()
    (target / "inside").touch()
    with pytest.raises(StalledError, match="could not write"):
        write_private(target, b"x")
    assert sorted(it.name for it in tmp_path.iterdir()) == ["folder"]
