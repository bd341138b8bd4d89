"""What the operator of a server decides, beside the deployment of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from kit.engine.reference_files import DEFAULT_LIMITS


@dataclass(frozen=True)
class ServerSettings:
    """One server's settings; `create_app` and every `install_*` function take them."""

    name: str
    """Public id of the model."""

    aliases: tuple[str, ...] = ()
    """Other names that requests may give as `model`."""

    api_key: str | None = field(default=None, repr=False)
    """Key that every request but health probes must carry; None asks for none."""

    max_body_bytes: int = 64 << 20
    """Largest body of a request, counted while it arrives."""

    max_json_bytes: int = 8 << 20
    """Largest body that is not multipart; parsed JSON takes many times its bytes."""

    max_image_bytes: int = DEFAULT_LIMITS.max_bytes
    """Largest image file of an upload, before decoding."""

    max_image_pixels: int = DEFAULT_LIMITS.max_pixels
    """Largest image of an upload by its header, in pixels, before decoding."""

    max_form_files: int = 16
    """Most files of one form."""

    max_form_fields: int = 256
    """Most text fields of one form."""

    max_form_field_bytes: int = 1 << 20
    """Longest text field of a form."""

    default_timeout_s: float | None = None
    """Deadline of requests that name none, queue included; None means none."""

    max_event_streams: int = 16
    """Most open event streams of `/v1/kv`."""

    max_finished_jobs: int = 64
    """Most finished jobs whose results are kept; the oldest goes first."""

    max_job_bytes: int = 256 << 20
    """Most bytes of finished jobs' results; the oldest goes first."""

    job_ttl_s: float = 3600.0
    """How long the result of a finished job is kept."""

    root_path: str = ""
    """Path under which a reverse proxy shows this server, such as `/images`."""

    stall_limit_s: float = 120.0
    """`/ready` says no when a request is to run and no step has ended for so long."""
