"""Scripts that complete commands and names in a shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["script"]


def script(shell: str, words: Mapping[str, Sequence[str]]) -> str:
    """The script for ``bash``, ``zsh`` or ``fish``.

    Args:
        shell: Which shell.
        words: What can follow: by ``""`` the commands, by a command its first word, by ``"train *"`` the word after it.

    Example:
        >>> print(script("fish", {"": ["train"], "train": ["ssvi"], "train *": ["digits"]}))
        complete -c gossamer -n "__fish_use_subcommand" -f -a "train"
        complete -c gossamer -n "__fish_seen_subcommand_from train" -a "ssvi digits"
        <BLANKLINE>
    """
    if shell == "fish":
        lines = [f'complete -c gossamer -n "__fish_use_subcommand" -f -a "{" ".join(words[""])}"']
        for command in [key for key in words if key and not key.endswith("*")]:
            every = [*words[command], *words.get(f"{command} *", ())]
            lines.append(f'complete -c gossamer -n "__fish_seen_subcommand_from {command}" -a "{" ".join(every)}"')
        return "\n".join(lines) + "\n"
    if shell not in ("bash", "zsh"):
        raise ValueError(f"completion knows bash, zsh and fish, not {shell!r}")
    cases = "\n".join(
        f'    {command}) words="{" ".join(words[command])}" ;;'
        for command in words
        if command and not command.endswith("*")
    )
    head = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"""{head}_gossamer() {{
  local words="" current="${{COMP_WORDS[COMP_CWORD]}}"
  case $COMP_CWORD in
  1) words="{" ".join(words[""])}" ;;
  2) case "${{COMP_WORDS[1]}}" in
{cases}
    esac ;;
  3) [ "${{COMP_WORDS[1]}}" = train ] && words="{" ".join(words.get("train *", ()))}" ;;
  esac
  COMPREPLY=( $(compgen -W "$words" -- "$current") )
  [ ${{#COMPREPLY[@]}} -eq 0 ] && COMPREPLY=( $(compgen -f -- "$current") )
}}
complete -o filenames -F _gossamer gossamer
"""
