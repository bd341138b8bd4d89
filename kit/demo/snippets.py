"""A request as a curl line and as Python, ready to copy."""

from __future__ import annotations

import json
import shlex
from typing import Any

from kit.demo.client import ServerClient

_PATH = "/v1/images/generations"


def as_curl(client: ServerClient, body: dict[str, Any]) -> str:
    """Return a shell line that writes the first picture to picture.png; needs jq."""
    key = ' \\\n  -H "Authorization: Bearer $KIT_API_KEY"' if client.has_key else ""
    return (
        f"curl -s {client.public_url}{_PATH} \\\n"
        f'  -H "Content-Type: application/json"{key} \\\n'
        f"  -d {shlex.quote(json.dumps(body, ensure_ascii=False))} \\\n"
        "  | jq -r '.data[0].b64_json' | base64 -d > picture.png\n"
    )


def as_python(client: ServerClient, body: dict[str, Any]) -> str:
    """Return a program of the standard library only that writes every picture."""
    key = (
        'request.add_header("Authorization", f"Bearer {os.environ[\'KIT_API_KEY\']}")\n'
        if client.has_key
        else ""
    )
    imports = ("base64", "json", *(("os",) if client.has_key else ()), "urllib.request")
    fields = "".join(f"    {name!r}: {value!r},\n" for name, value in body.items())
    url = f"{client.public_url}{_PATH}"
    return (
        "".join(f"import {name}\n" for name in imports)
        + f"\nbody = {{\n{fields}}}\n"
        + f'request = urllib.request.Request("{url}", json.dumps(body).encode())\n'
        + f'request.add_header("Content-Type", "application/json")\n{key}'
        + "with urllib.request.urlopen(request) as answer:\n"
        + '    pictures = json.load(answer)["data"]\n'
        + "for picture in pictures:\n"
        + '    with open(f"picture-{picture[\'seed\']}.png", "wb") as file:\n'
        + '        file.write(base64.b64decode(picture["b64_json"]))\n'
    )
