"""Checks messages of commits: `python tests/commit_message.py FILE` as a hook, or `--log RANGE`."""

import subprocess
import sys
from pathlib import Path

MOST = 72


def faults(message: str) -> list[str]:
    """Returns the faults of a message, as sentences; lines that begin with # are git's."""
    lines = [line.rstrip() for line in message.splitlines() if not line.startswith("#")]
    subject, *rest = lines or [""]
    if subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
        return []
    sentences = []
    if not subject:
        sentences.append("the first line, the subject, is empty")
    if len(subject) > MOST:
        sentences.append(
            f"the subject has {len(subject)} characters, and at most {MOST} are shown everywhere"
        )
    if subject.endswith("."):
        sentences.append("the subject ends with a full stop")
    if rest and rest[0]:
        sentences.append("the second line must be empty")
    if not any(rest):
        sentences.append("after an empty line the message must say why")
    return sentences


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--log"]:
        text = subprocess.run(
            ["git", "log", "--format=%B%x00", arguments[1]],
            capture_output=True,
            text=True,
            check=True,
        )
        messages = [message.strip("\n") for message in text.stdout.split("\0") if message.strip()]
    else:
        messages = [Path(arguments[0]).read_text()]
    wrong = [
        (message.splitlines()[0] if message else "", fault)
        for message in messages
        for fault in faults(message)
    ]
    for subject, fault in wrong:
        print(f"{subject!r}: {fault}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
