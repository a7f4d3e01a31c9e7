"""Commands as a page prints them: to be pasted into a shell."""

from __future__ import annotations

import shlex


def continued(text: str, width: int, indent: str = "      ") -> list[str]:
    r"""A command over as many lines as it takes; pasted into a shell it is the same command.

    >>> continued("aws ec2 delete-volume --region eu-west-1 --volume-id vol-1", 40)
    ['      $ aws ec2 delete-volume \\', '          --region eu-west-1 \\', '          --volume-id vol-1']
    """
    head, pad = f"{indent}$ ", f"{indent}    "
    if len(head) + len(text) <= width:
        return [head + text]
    words = [shlex.quote(word) for word in shlex.split(text)]
    parts: list[list[str]] = []  # an option stays with its value
    for word in words:
        if parts and parts[-1][-1].startswith("--") and not word.startswith("--") and len(parts[-1]) == 1:
            parts[-1].append(word)
        else:
            parts.append([word])
    lines, line = [], head
    for part in map(" ".join, parts):
        if line.strip() not in ("", "$") and len(line) + 1 + len(part) + 2 > width:
            lines.append(line + " \\")
            line = pad
        line += part if line in (head, pad) else f" {part}"
    return [*lines, line]
