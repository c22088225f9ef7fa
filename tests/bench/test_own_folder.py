"""The server that `holdfast bench` makes for itself leaves nothing behind."""

import stat

from holdfast.bench.server import own_folder


def test_another_user_can_enter_it_and_it_goes() -> None:
    with own_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755
        (folder / "postgres").mkdir()
    assert not folder.exists()
