"""Writes the golden bytes of every message version that has none yet; never touches the others.

Run it once for a new version: `python tests/golden/make.py`. Released files stay for ever.
"""

import json
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from refold_schemas.codec import Codec  # noqa: E402
from refold_schemas.registry import FileRegistry  # noqa: E402
from support.messages import MESSAGE_CLASSES, example, plain  # noqa: E402


def file_name(name: str, version: int) -> str:
    """`StepCompleted`, 1 -> `step_completed.v1.json`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() + f".v{version}.json"


def main() -> None:
    registry = FileRegistry()
    codec = Codec(registry)
    for cls in MESSAGE_CLASSES:
        full, bare = example(cls), example(cls, bare=True)
        data = codec.encode(full)
        schema_id = int.from_bytes(data[1:5], "big")
        _, version = registry.name_version(schema_id)
        path = FOLDER / file_name(cls.__name__, version)
        golden = {
            "schema_id": schema_id,
            "hex": data.hex(),
            "fields": plain(full),
            "bare": {"hex": codec.encode(bare).hex(), "fields": plain(bare)},
        }
        try:
            with path.open("x", encoding="utf-8") as file:
                json.dump(golden, file, indent=1, ensure_ascii=False)
                file.write("\n")
        except FileExistsError:
            continue
        sys.stdout.write(f"wrote {path.name}\n")


if __name__ == "__main__":
    main()
