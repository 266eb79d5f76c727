"""Two users of one machine, with one folder of temporary files and caches: neither reads, poisons
or blocks the other."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.job.jobs import Job, even
from tests.support.manifest import FIXTURES
from traceana import cache
from traceana.enrich.classify import engine
from traceana.errors import ExitCode

READ_PYTHON: Final = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
"""Python may be in a folder of root's; that files are readable is judged by their modes."""


def can_be_others() -> bool:
    """Return whether this process can start one of another user."""
    words = ["setpriv", "--reuid", "1", "--regid", "1", "--clear-groups", *READ_PYTHON, "true"]
    return (
        shutil.which("setpriv") is not None and subprocess.run(words, check=False).returncode == 0
    )


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_be_others(), reason="only root can be two users"),
]
ROOT = Path(__file__).parents[2]
ALICE, MALLORY = 54_321, 54_322
TRACE = "alexnet-cpu-ranges.json.gz"
CLASSES = "traceana/classes"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder for all, as /tmp: pytest's own is root's alone. Each user has a folder in it."""
    folder = Path(tempfile.mkdtemp(prefix="two-users-"))
    folder.chmod(0o1777)
    for user in (ALICE, MALLORY):
        home = folder / str(user)
        home.mkdir(mode=0o755)
        shutil.copy(FIXTURES / TRACE, home / "run.json.gz")
        os.chown(home, user, user)
        os.chown(home / "run.json.gz", user, user)
    yield folder
    shutil.rmtree(folder)


def start(user: int, shared: Path, *words: object) -> subprocess.Popen[bytes]:
    """Start Python with ``words`` as ``user``, in the user's folder."""
    own = {"TMPDIR": str(shared), "XDG_CACHE_HOME": str(shared), "HOME": str(shared / str(user))}
    to_user = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *READ_PYTHON]
    return subprocess.Popen(
        [*map(str, to_user), sys.executable, *map(str, words)],
        cwd=shared / str(user),
        env={**os.environ, **own, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(user: int, shared: Path, *words: object) -> tuple[int, str, str]:
    process = start(user, shared, "-m", "traceana", *words)
    output, error = process.communicate(timeout=120)
    return process.returncode, output.decode(), error.decode()


def readable(folder: Path, user: int) -> list[Path]:
    """Return the files of ``user`` below ``folder`` that others can read."""

    def below(path: Path) -> Iterator[Path]:
        for entry in path.iterdir():
            mode = entry.lstat().st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IXOTH:
                yield from below(entry)
            elif entry.lstat().st_uid == user and mode & stat.S_IROTH and not stat.S_ISDIR(mode):
                yield entry

    return [path for path in below(folder) if str(user) not in path.parts]


def test_neither_reads_nor_blocks_the_other(shared: Path) -> None:
    """The first user's cache is private, and the second one has a cache, too."""
    for user in (ALICE, MALLORY):
        Job(even(2, 3, 1)).write(shared / str(user) / "job")
        for words in (("kernels", "run.json.gz"), ("ranks", "job", "--workers", "1")):
            code, output, error = run(user, shared, *words)
            assert (code, error) == (0, ""), words
            assert output
        assert run(user, shared, "export", "run.json.gz", "-o", "o.duckdb")[0] == 0
    assert (shared / CLASSES).lstat().st_uid == ALICE
    assert (shared / f"traceana-{MALLORY}/ranks").lstat().st_uid == MALLORY
    for user in (ALICE, MALLORY):
        assert readable(shared, user) == []
    assert run(MALLORY, shared, "kernels", f"{shared}/{ALICE}/run.json.gz")[0] == 0


def test_a_cache_that_another_user_made_is_not_trusted(shared: Path) -> None:
    code, honest, _ = run(ALICE, shared, "kernels", "run.json.gz", "-f", "json")
    assert code == 0
    shutil.rmtree(shared / "traceana")
    assert run(MALLORY, shared, "kernels", "run.json.gz")[0] == 0
    planted = shared / CLASSES
    assert planted.lstat().st_uid == MALLORY
    (file,) = planted.iterdir()
    _, _, content = file.read_bytes().partition(b"\n")
    wrong = content.replace(b"elementwise", b"convolution")
    # A valid seal is no protection: whoever wrote the file could write it.
    file.write_bytes(cache._seal(engine._key(), wrong) + b"\n" + wrong)
    code, output, _ = run(MALLORY, shared, "kernels", "run.json.gz", "-f", "json")
    assert code == 0
    assert output != honest
    for folder in (planted, planted.parent):
        folder.chmod(0o777)
    code, output, error = run(ALICE, shared, "kernels", "run.json.gz", "-f", "json")
    assert (code, output, error) == (0, honest, "")
    # Both names are taken: no cache, and no summaries of ranks.
    (shared / f"traceana-{ALICE}").rename(shared / "away")
    (shared / f"traceana-{ALICE}").mkdir(mode=0o777)
    os.chown(shared / f"traceana-{ALICE}", MALLORY, MALLORY)
    code, output, _ = run(ALICE, shared, "kernels", "run.json.gz", "-f", "json")
    assert (code, output) == (0, honest)
    Job(even(2, 3, 1)).write(shared / str(ALICE) / "job")
    code, _, error = run(ALICE, shared, "ranks", "job", "--workers", "1")
    assert code == ExitCode.CANNOT_WRITE
    assert error.startswith("traceana: cannot keep summaries in ")
    assert error.count("\n") == 1
    home = shared / str(ALICE)
    assert run(ALICE, shared, "ranks", "job", "--workers", "1", "--keep", home / "kept")[0] == 0


def test_links_and_pipes_of_another_user_are_not_written_to(shared: Path) -> None:
    precious, link, pipe = shared / str(ALICE) / "precious", shared / "out.csv", shared / "pipe.csv"
    precious.write_text("mine")
    os.chown(precious, ALICE, ALICE)
    link.symlink_to(precious)
    os.mkfifo(pipe, 0o666)
    for path in (link, pipe):
        os.chown(path, MALLORY, MALLORY, follow_symlinks=False)
        code, _, error = run(ALICE, shared, "kernels", "run.json.gz", "-o", path, "--force")
        assert code == ExitCode.CANNOT_WRITE
        assert error == (
            f"traceana: cannot write {path}: another user put it into a folder for all\n"
        )
    assert precious.read_text() == "mine"
    os.chown(link, ALICE, ALICE, follow_symlinks=False)
    assert run(ALICE, shared, "kernels", "run.json.gz", "-o", link, "--force")[0] == 0
    assert precious.read_text().startswith("name,")


HOLDS = """
import signal
from pathlib import Path
from traceana.files import scratch_folder
with scratch_folder() as folder:
    (folder / "file").write_text("secret")
    print(folder, flush=True)
    signal.pause()
"""


def test_files_that_another_user_left_stay_and_locks_of_others_do_not_block(shared: Path) -> None:
    process = start(MALLORY, shared, "-c", HOLDS)
    assert process.stdout is not None
    left = Path(process.stdout.readline().decode().strip())
    # Even where another user may open it, as a folder for all, it is not deleted.
    left.chmod(0o777)
    assert run(ALICE, shared, "export", "run.json.gz", "-o", "o.duckdb")[0] == 0
    assert (left / "file").exists()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert run(ALICE, shared, "export", "run.json.gz", "-o", "o2.duckdb")[0] == 0
    assert (left / "file").exists()
    assert run(MALLORY, shared, "export", "run.json.gz", "-o", "o.duckdb")[0] == 0
    assert not left.exists()


def test_a_recording_in_a_folder_of_another_user_is_refused(shared: Path) -> None:
    partial = shared / "run.partial"
    partial.mkdir()
    partial.chmod(0o777)
    os.chown(partial, MALLORY, MALLORY)
    with (partial / ".lock").open("w") as lock:
        (partial / ".lock").chmod(0o666)
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, error = run(ALICE, shared, "record", "-o", shared / "run", "--", "true")
    assert code == ExitCode.CANNOT_WRITE
    assert error == f"traceana: {partial} is another user's: choose another name\n"
    code, _, error = run(ALICE, shared, "record", "-o", shared / "mine", "--", "true")
    assert "another" not in error
