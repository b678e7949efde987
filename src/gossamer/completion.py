"""Scripts that complete commands, names and flags in a shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["SHELLS", "script"]

SHELLS = ("bash", "zsh", "fish")

Words = Mapping[str, Sequence[str]]

# zsh runs the script of bash. Names with commas between them are completed after the last comma.
_BASH = """_gossamer() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words="" before=""
  case "$current" in
  -*) case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{flags}
    esac ;;
  *) case "$COMP_CWORD ${{COMP_WORDS[*]:1:COMP_CWORD-1}}" in
{names}
    esac
    if [ "${{COMP_WORDS[1]}}" = compare ] && [ "$current" != "${{current%,*}}" ]; then before="${{current%,*}},"; fi ;;
  esac
  COMPREPLY=( $(compgen -P "$before" -W "$words" -- "${{current#"$before"}}") )
  if [ ${{#COMPREPLY[@]}} -eq 0 ]; then COMPREPLY=( $(compgen -f -- "$current") ); fi
}}
complete -o filenames -F _gossamer gossamer
"""


def script(shell: str, words: Words, flags: Words) -> str:
    """The script for ``bash``, ``zsh`` or ``fish``.

    Args:
        shell: Which shell.
        words: What can follow the words of the key: the commands by ``""``, by a command what follows it.
        flags: The flags by a command, or by a command and the word after it.

    Example:
        >>> print(script("fish", {"": ["train"], "train": ["ssvi"]}, {"train": ["--out"]}))
        complete -c gossamer -n "__fish_is_nth_token 1" -f -a "train"
        complete -c gossamer -n "__fish_is_nth_token 2; and __fish_seen_subcommand_from train" -a "ssvi"
        complete -c gossamer -n "__fish_seen_subcommand_from train" -l out
        <BLANKLINE>
    """
    if shell not in SHELLS:
        raise ValueError(f"completion knows {', '.join(SHELLS)}, not {shell!r}")
    if shell == "fish":
        return _fish(words, flags)
    head = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    longest_first = sorted(flags, key=lambda key: -len(key.split()))
    by_flags = [_case(f'"{key}"*' if " " in key else f'"{key} "*', flags[key]) for key in longest_first]
    by_names = [_case(f'"{len(key.split()) + 1} {key}"', words[key]) for key in words]
    return head + _BASH.format(flags="\n".join(by_flags), names="\n".join(by_names))


def _case(pattern: str, words: Sequence[str]) -> str:
    return f'    {pattern}) words="{" ".join(words)}" ;;'


def _fish(words: Words, flags: Words) -> str:
    lines = []
    for key, following in words.items():
        parts = key.split()
        seen = [f"__fish_seen_subcommand_from {part}" for part in parts]
        condition = "; and ".join([f"__fish_is_nth_token {len(parts) + 1}", *seen])
        files = "" if parts else " -f"
        lines.append(f'complete -c gossamer -n "{condition}"{files} -a "{" ".join(following)}"')
    for key, some in flags.items():
        condition = "; and ".join(f"__fish_seen_subcommand_from {part}" for part in key.split())
        lines += [f'complete -c gossamer -n "{condition}" -l {flag.removeprefix("--")}' for flag in some]
    return "\n".join(lines) + "\n"
