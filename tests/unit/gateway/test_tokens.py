"""Tokens: only hashes are kept, only the whole token is one, and what changes is seen."""

import stat
from pathlib import Path

import pytest

from muster.gateway import tokens as module
from muster.gateway.tokens import Tokens, TokensDamaged


@pytest.fixture(autouse=True)
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)


def test_only_hashes_are_kept_and_only_their_owner_may_read_them(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    made, sent = tokens.create("submit", user="ada", queues=("research",))
    secret = sent.split("_", 2)[2]
    assert secret not in tokens.path.read_text()
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    assert Tokens(tmp_path).find(sent) == made


def test_nothing_but_the_whole_token_is_one(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    made, sent = tokens.create("read")
    other, other_sent = tokens.create("operate")
    for wrong in (
        "",
        "muster",
        sent[:-1],
        sent + "0",
        f"muster_{made.id}_",
        f"muster_{other.id}_{sent.split('_', 2)[2]}",
        made.hash,
    ):
        assert tokens.find(wrong) is None, wrong
    assert tokens.find(other_sent) == other


def test_a_token_made_or_revoked_elsewhere_is_seen(tmp_path: Path) -> None:
    here, there = Tokens(tmp_path), Tokens(tmp_path)
    assert here.find("muster_0_0") is None
    made, sent = there.create("read")
    assert here.find(sent) == made
    assert there.revoke(made.id)
    assert not there.revoke(made.id)
    assert here.find(sent) is None


def test_a_file_that_holds_no_tokens_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text('[{"id": 3}]')
    with pytest.raises(TokensDamaged, match=r"tokens\.json"):
        Tokens(tmp_path).find("muster_0_0")
