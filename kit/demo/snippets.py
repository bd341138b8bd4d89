"""A request as a curl line and as Python, ready to copy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from kit.demo.client import ServerClient, form_fields

_PATH = "/v1/images/generations"
_EDITS_PATH = "/v1/images/edits"


def as_curl(client: ServerClient, body: dict[str, Any], images: Sequence[str] = ()) -> str:
    """Return a shell line that writes the first picture to picture.png; needs jq.

    `images` are the names of reference images' files in the current folder.
    """
    key = ' \\\n  -H "Authorization: Bearer $KIT_API_KEY"' if client.has_key else ""
    if images:
        # --form-string: the text of --form may name a file.
        fields = form_fields(body).items()
        parts = [f"--form-string {shlex.quote(f'{name}={text}')}" for name, text in fields]
        parts += [f"-F {shlex.quote(f'image[]=@{_quoted(name)}')}" for name in images]
        sent = f"{_EDITS_PATH}{key} \\\n  " + " \\\n  ".join(parts)
    else:
        sent = (
            f'{_PATH} \\\n  -H "Content-Type: application/json"{key} \\\n'
            f"  -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
        )
    return (
        f"curl -s {client.public_url}{sent} \\\n"
        "  | jq -r '.data[0].b64_json' | base64 -d > picture.png\n"
    )


def as_python(client: ServerClient, body: dict[str, Any], images: Sequence[str] = ()) -> str:
    """Return a program of the standard library only that writes every picture.

    `images` are the names of reference images' files in the current folder.
    """
    key = (
        'request.add_header("Authorization", f"Bearer {os.environ[\'KIT_API_KEY\']}")\n'
        if client.has_key
        else ""
    )
    imports = ("base64", "json", *(("os",) if client.has_key else ()), "urllib.request")
    ask = _FORM_PROGRAM if images else _JSON_PROGRAM
    values = form_fields(body) if images else body
    fields = "".join(f"    {name!r}: {value!r},\n" for name, value in values.items())
    url = client.public_url + (_EDITS_PATH if images else _PATH)
    return (
        "".join(f"import {name}\n" for name in imports)
        + f"\nbody = {{\n{fields}}}\n"
        + ask.format(url=url, images=list(images))
        + key
        + "with urllib.request.urlopen(request) as answer:\n"
        + '    pictures = json.load(answer)["data"]\n'
        + "for picture in pictures:\n"
        + '    with open(f"picture-{picture[\'seed\']}.png", "wb") as file:\n'
        + '        file.write(base64.b64decode(picture["b64_json"]))\n'
    )


_JSON_PROGRAM = """\
request = urllib.request.Request("{url}", json.dumps(body).encode())
request.add_header("Content-Type", "application/json")
"""

_FORM_PROGRAM = """\
head, form = "--kit-form\\r\\nContent-Disposition: form-data; name=", b""
for name, value in body.items():
    form += f'{{head}}"{{name}}"\\r\\n\\r\\n{{value}}\\r\\n'.encode()
for path in {images}:
    with open(path, "rb") as file:
        form += f'{{head}}"image[]"; filename="image"\\r\\n\\r\\n'.encode()
        form += file.read() + b"\\r\\n"
request = urllib.request.Request("{url}", form + b"--kit-form--\\r\\n")
request.add_header("Content-Type", "multipart/form-data; boundary=kit-form")
"""


def _quoted(name: str) -> str:
    """A file's name as curl reads it: `,` and `;` would end one without quotes."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
