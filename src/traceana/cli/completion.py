"""The scripts that complete command lines of traceana in bash, zsh and fish.

typer's own script evaluates candidates in zsh, expands them as patterns in bash, and starts
traceana twice in fish. In bash it completes no value with a colon, and ``idle=`` gets a space.
These scripts ask for candidates as typer's of fish does: one a line, with its help after a tab.
"""

from __future__ import annotations

from typing import Final

from typer import _completion_shared

UNSAFE: Final = frozenset("$`\\\"'!")
"""Characters that a shell interprets inside quotes as well. No value with them is a candidate."""

# bash replaces only what follows the last break of words, where its candidates must begin: a colon
# and an equals sign are breaks outside quotes.
_BASH: Final = r"""
_traceana_completion() {
    local typed="${COMP_LINE:0:COMP_POINT}" before one start
    before="${typed%"$2"}"
    COMPREPLY=()
    while IFS= read -r one; do
        one="${one%%$'\t'*}"
        [[ -n $one ]] || continue
        for (( start = 0; start < ${#before}; start++ )); do
            if [[ $one == "${before:start}"* ]]; then
                one="${one#"${before:start}"}"
                break
            fi
        done
        if [[ $before != *[\"\'] && $one == *[^a-zA-Z0-9_.,:=/@%+-]* ]]; then
            printf -v one %q "$one"
        fi
        COMPREPLY+=("$one")
    done < <(env _TRACEANA_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \
                 _TYPER_COMPLETE_ARGS="$typed" "$1")
    # The name of a figure or of a group of values is followed by its value, without a space.
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=:] ]]; then
        compopt -o nospace
    fi
    # A layer is not a file.
    if [[ $before == *layer: ]]; then
        compopt +o default
    fi
    return 0
}

complete -o default -F _traceana_completion traceana
"""

_ZSH: Final = r"""
#compdef traceana

_traceana_completion() {
    local typed="${words[1,$CURRENT]}" line value
    local -a complete open
    while IFS= read -r line; do
        [[ -n $line ]] || continue
        # A colon separates a value from its help.
        value="${${line%%$'\t'*}//:/\\:}"
        [[ $line == *$'\t'* ]] && value+=":${line#*$'\t'}"
        if [[ ${line%%$'\t'*} == *[=:] ]]; then open+=("$value"); else complete+=("$value"); fi
    done < <(env _TRACEANA_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \
                 _TYPER_COMPLETE_ARGS="$typed" traceana)
    # The value of --option=value.
    [[ $PREFIX == --*=* ]] && compset -P 1 '*='
    if (( ! $#complete && ! $#open )); then
        _files
        return
    fi
    (( $#complete )) && _describe -V value complete
    # The name of a figure is followed by its value, without a space.
    (( $#open )) && _describe -V value open -S ''
    return 0
}

# The first completion after the start of a shell runs this file.
if [[ $funcstack[1] == _traceana ]]; then
    _traceana_completion "$@"
else
    compdef _traceana_completion traceana
fi
"""

_FISH: Final = r"""
function __traceana_candidates
    set -l found (env _TRACEANA_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \
        _TYPER_COMPLETE_ARGS=(commandline -cp | string collect) traceana | string match -v '')
    # Candidates replace the whole word, also after --option=.
    set -l option (string match --regex -- '^--[^=]+=' (commandline -ct))
    if not set -q found[1]
        set found (__fish_complete_path (string replace -- "$option" '' (commandline -ct)))
    end
    set -q found[1]; and printf '%s\n' "$option"$found
end

complete --command traceana --no-files --arguments '(__traceana_candidates)'
"""


def use() -> None:
    """Have typer's ``--install-completion`` and ``--show-completion`` give these scripts."""
    scripts = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
    # typer fills in the names of the program with the operator %.
    _completion_shared._completion_scripts.update(
        {shell: script.replace("%", "%%") for shell, script in scripts.items()}
    )
