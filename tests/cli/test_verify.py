"""`precook verify`: what is damaged, and how the command ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.commands import VAE, flip, on_terminal, run
from tests.support.snapshots import packs


class TestVerify:
    """`precook verify`."""

    def test_a_sound_store_is_clean(self, store: Path) -> None:
        """Exit code 0, and what was checked."""
        ended = run("verify", "--store", store)
        assert ended.code == 0
        assert re.fullmatch(r"checked 2 packs, 6 entries, .* in .*: no damage\n", ended.out)
        found = run("verify", "--store", store, "--json").document
        assert (found["version"], found["clean"], found["complete"], found["damage"]) == (1, True, True, [])
        assert (found["packs"], found["entries"]) == (2, 6)
        assert found["bytes"] == sum(pack.stat().st_size for pack in packs(store))

    def test_damage_is_listed_with_pack_key_offset_and_reason(self, store: Path) -> None:
        """Exit code 4, for one damaged entry and one damaged pack, and what to do next."""
        latents, texts = sorted(packs(store), key=lambda pack: b"latent" not in pack.read_bytes())
        flip(latents, -1)
        flip(texts, 60)
        ended = run("verify", "--store", store)
        assert ended.code == 4
        assert f"packs/{latents.parent.name}/{latents.name}\n" in ended.out
        assert re.search(rf"entry {VAE.key(2).hex[:16]}  at byte [\d,]+  its checksum does not match\n", ended.out)
        assert re.search(r"whole pack  not a pack: .*\n", ended.out)
        assert "1 damaged pack, 1 damaged entry" in ended.out
        assert "hint: " in ended.err
        found = run("verify", "--store", store, "--json")
        assert found.code == 4
        damage = {item["key"]: item for item in found.document["damage"]}
        entry = damage[VAE.key(2).hex]
        assert entry["pack"] == str(latents)
        assert entry["offset"] == latents.stat().st_size - 512
        assert damage[None]["pack"] == str(texts)
        assert str(texts) not in damage[None]["reason"]

    def test_subsets_cover_the_store(self, store: Path) -> None:
        """Every pack lies in exactly one of n parts, and a part says how to go on."""
        checked = [run("verify", "--store", store, "--subset", f"{part}/3", "--json").document for part in (1, 2, 3)]
        assert sum(part["packs"] for part in checked) == 2
        assert checked[0]["subset"] == "1/3"
        for part, found in enumerate(checked, 1):
            hint = run("verify", "--store", store, "--subset", f"{part}/3").err
            following = f"`precook verify --subset {part % 3 + 1}/3` checks the next"
            assert (following in hint) is not found["complete"]

    def test_the_time_can_be_limited(self, store: Path) -> None:
        """With no time at all one pack is checked, and the next run goes on there."""
        ended = run("verify", "--store", store, "--max-time", "0s", "--json")
        assert ended.code == 0
        assert (ended.document["packs"], ended.document["pass"]["finished"]) == (1, False)
        rest = run("verify", "--store", store, "--max-time", "1h", "--json").document
        assert (rest["packs"], rest["pass"]) == (1, {"finished": True, "packs": 2, "damaged": 0})

    @pytest.mark.parametrize(
        "options", [("--subset", "0/7"), ("--subset", "8/7"), ("--subset", "x"), ("--max-time", "10")]
    )
    def test_wrong_options_are_usage_errors(self, store: Path, options: tuple[str, str]) -> None:
        """Exit code 2."""
        assert run("verify", "--store", store, *options).code == 2

    def test_a_bar_is_shown_on_a_terminal_only(self, store: Path) -> None:
        """Progress goes to a person and is gone in the end; the result stays."""
        assert "2 of 2 packs" in on_terminal("verify", "--store", store)
        assert run("verify", "--store", store).err == ""
