"""Keys for signed commands, in files as workers and holders have them."""

import json
from pathlib import Path

from refold.settings.signing import Keyring, Signer, make_key, open_keyring, open_signer


def written(path: Path, body: object) -> str:
    path.write_text(json.dumps(body))
    path.chmod(0o600)
    return str(path)


def keys_of(folder: Path, **speakers: tuple[str, str]) -> tuple[Keyring, dict[str, Signer]]:
    """Keys by id, each `(algorithm, speaks_for)`: what workers have, and the holders' signers."""
    lines, signers = [], {}
    for key_id, (algorithm, speaks_for) in speakers.items():
        kept, line = make_key(key_id, algorithm, speaks_for)
        lines.append(line)
        signer = open_signer(written(folder / f"{key_id}.json", kept))
        assert signer is not None
        signers[key_id] = signer
    keyring = open_keyring(written(folder / "keys.json", {"keys": lines}))
    assert keyring is not None
    return keyring, signers
