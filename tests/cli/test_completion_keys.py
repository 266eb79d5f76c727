"""Completion by keys in bash, zsh and fish, each in a pseudo-terminal."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.support.manifest import FIXTURES

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals"),
]

SHELLS: Final = {
    "bash": (
        ".bashrc",
        """bind -x '"\\C-t": printf %s "$READLINE_LINE" > "$LINE"; mv "$LINE" {}'""",
    ),
    "zsh": (
        ".zshrc",
        'show() {{ print -rn -- "$BUFFER" > "$LINE"; mv "$LINE" {} }}; zle -N show; '
        "bindkey '^T' show",
    ),
    "fish": (
        ".config/fish/conf.d/show.fish",
        "function fish_user_key_bindings; bind \\ct 'commandline > $LINE; mv $LINE {}'; end",
    ),
}
"""The file that a shell reads as it starts, and what binds Control-T in it to write the command
line to a file."""
TAB, SHOW, ERASE = "\t", "\x14", "\x15"
_START: Final = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
"""The program that makes its standard input the terminal of its session, and becomes a shell."""
_CONTROLS: Final = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\(B|\\")
LONGEST: Final = 30.0
"""Seconds. On a machine that does other things as well, a shell starts slowly."""
TRACE: Final = "run.json.gz"
LAYER: Final = f"whatif {TRACE} --scenario layer:"
HOSTILE: Final = (
    "odd$(touch made)",
    "odd\\$(touch made)",
    "odd`touch made`",
    "odd'\"$(touch made)",
)


class Terminal:
    """An interactive shell in ``folder`` with the completion of traceana, as a user has it."""

    def __init__(self, shell: str, folder: Path) -> None:
        import fcntl
        import pty
        import struct
        import termios

        home, self._shown = folder / "home", folder / "shown"
        self.folder = folder / "work"
        environment = {
            "HOME": str(home), "LINE": str(folder / "line"), "TERM": "xterm", "LC_ALL": "C.UTF-8",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        name, binding = SHELLS[shell]
        (home / name).parent.mkdir(parents=True)
        # It finds out which shell runs it.
        subprocess.run(
            [shell, "-c", "traceana --install-completion; true"],
            env=environment, check=True, capture_output=True,
        )  # fmt: skip
        with (home / name).open("a") as file:
            file.write(f"\n{binding.format(self._shown)}\n")
        self._terminal, inside = pty.openpty()
        # Not a fork: pytest may have threads.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, shell, "-i"],
            env=environment, cwd=self.folder, start_new_session=True,
            stdin=inside, stdout=inside, stderr=inside,
        )  # fmt: skip
        os.close(inside)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self._printed = b""
        # bash completes at the first one, and lists at the second.
        self._second_tab = TAB if shell == "bash" else ""

    def completed(self, line: str) -> str:
        """Return the command line after ``line`` and Tab."""
        os.write(self._terminal, f"{line}{TAB}{SHOW}".encode())
        self._read_until(self._shown.exists)
        os.write(self._terminal, ERASE.encode())
        text = self._shown.read_text()
        self._shown.unlink()
        return text.removesuffix("\n")

    def list_until(self, line: str, words: set[str]) -> set[str]:
        """Return the words that are printed after ``line`` and Tab, at least ``words``."""
        self._printed = b""
        os.write(self._terminal, f"{line}{TAB}{self._second_tab}".encode())
        self._read_until(lambda: words <= self._words())
        os.write(self._terminal, ERASE.encode())
        return self._words()

    def _words(self) -> set[str]:
        text = _CONTROLS.sub("", self._printed.decode(errors="replace"))
        # fish and zsh may print the prefix of a candidate.
        return {word.removeprefix("layer:") for word in text.split()}

    def _read_until(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + LONGEST
        while not done():
            assert time.monotonic() < until, self._printed.decode(errors="replace")
            if select.select([self._terminal], [], [], 0.02)[0]:
                self._printed += os.read(self._terminal, 65_536)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture(scope="module", params=SHELLS)
def terminal(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Terminal]:
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} here")
    folder = tmp_path_factory.mktemp(request.param)
    work = folder / "work"
    work.mkdir()
    (work / TRACE).write_bytes(b"it is not opened")
    manifest = msgspec.json.decode((FIXTURES / "alexnet-cpu-ranges.layers.json").read_bytes())
    layers = manifest["layers"]
    for layer, name in zip(layers, ("block 1", *HOSTILE), strict=False):
        layer["path"] = name
    for layer, name in zip(layers[5:], ("features.0", "features.1", "top.fc"), strict=False):
        layer["path"] = name
    manifest["layers"] = layers[:8]
    (work / "run.layers.json").write_bytes(msgspec.json.encode(manifest))
    started = Terminal(request.param, folder)
    yield started
    started.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "added"),
    [
        pytest.param("lay", "ers ", id="command"),
        pytest.param("report --qu", "iet ", id="option"),
        pytest.param("report ru", "n.", id="file"),
        pytest.param("layers --model=ru", "n.", id="file after ="),
        pytest.param(f"whatif {TRACE} --scenario embed", "ding ", id="class"),
        pytest.param(f"{LAYER}to", "p.fc ", id="layer"),
        pytest.param(f"{LAYER}f", "eatures.", id="layers"),
        pytest.param(f"{LAYER}bl", "ock\\ 1 ", id="layer with a space"),
        pytest.param(f"whatif {TRACE} --scenario=layer:to", "p.fc ", id="layer after ="),
        pytest.param(f"whatif {TRACE} --scenario 'no layer:to", "p.fc' ", id="layer in quotes"),
        pytest.param("advise --rule pageab", "le_copies ", id="rule"),
        pytest.param("advise --fail-on host_bound,pageab", "le_copies ", id="rules"),
        # Its limit follows.
        pytest.param("advise --max idl", "e=", id="figure"),
    ],
)
def test_tab_completes(terminal: Terminal, begun: str, added: str) -> None:
    assert terminal.completed(f"traceana {begun}") == f"traceana {begun}{added}"


def test_tabs_list_the_layers(terminal: Terminal) -> None:
    layers = {"block", "features.0", "features.1", "top.fc"}
    shown = terminal.list_until(f"traceana {LAYER}", layers)
    assert "run.layers.json" not in shown


def test_a_name_of_a_layer_is_no_command(terminal: Terminal) -> None:
    line = f"traceana {LAYER}od"
    assert terminal.completed(line) == line
    assert not (terminal.folder / "made").exists()
