"""Writes what only the owner knows into the files of owner.toml, in place of what stands there:

    python .ci/fill.py --owner somebody --security-contact a@example.org --authors "Some Body"

Any of the three may be left out. Nothing is written if a text is not where owner.toml says.
"""

import argparse
import re
import tomllib
from pathlib import Path

FILE = "owner.toml"
# A value stands in YAML, TOML and Markdown as it is.
ALLOWED = {
    "owner": r"[A-Za-z0-9][A-Za-z0-9-]*",
    "security-contact": r"[^\s\"'#<>]+",
    "authors": r"\w[\w .,&()-]*",
}


def filled(root: Path, values: dict[str, str]) -> dict[Path, str]:
    """The new texts of the files under a folder, by their paths. Raises ValueError for a value that
    a file cannot hold, and for a file without the text that it should have."""
    texts = {root / FILE: (root / FILE).read_text()}
    for name, facts in tomllib.loads(texts[root / FILE]).items():
        new = values.get(name, facts["value"])
        if name in values and re.fullmatch(ALLOWED[name], new) is None:
            raise ValueError(f"--{name}: expected {ALLOWED[name]}, got {new!r}")
        pattern = re.compile(
            r"(?<!\w)("
            + "|".join(re.escape(t.format(facts["value"])) for t in facts["texts"])
            + ")"
        )
        for path in (root / file for file in facts["files"]):
            text = texts.get(path) or path.read_text()
            if pattern.search(text) is None:
                raise ValueError(f"{path}: expected {facts['value']!r} in it ({FILE})")
            texts[path] = pattern.sub(
                lambda found, old=facts["value"], new=new: found[0].replace(old, new, 1), text
            )
        texts[root / FILE] = texts[root / FILE].replace(
            f'value = "{facts["value"]}"', f'value = "{new}"'
        )
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name in ALLOWED:
        parser.add_argument(f"--{name}")
    options = {name.replace("_", "-"): text for name, text in vars(parser.parse_args()).items()}
    root = Path(__file__).resolve().parents[1]
    try:
        texts = filled(root, {name: text for name, text in options.items() if text is not None})
    except ValueError as error:
        parser.error(str(error))
    for path, text in texts.items():
        if text != path.read_text():
            path.write_text(text)
            print(path.relative_to(root))


if __name__ == "__main__":
    main()
