"""What a request may share with others, known before it is queued."""

from __future__ import annotations

from kit.config.deploy import DeployConfig
from kit.engine.preprocess import PreparedRequest
from kit.kv.prefix import PrefixKeys, PrefixScope, prefix_keys
from kit.messages import WorkerConfig
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.fingerprint import fingerprint_model
from kit.request import GenerationRequest


def plan_sharing(
    files: CheckpointFiles, config: DeployConfig, worker: WorkerConfig
) -> PrefixScope | None:
    """Return what all requests have in common; None without prefix caching.

    Reads the fingerprint of the weights; raises CheckpointError.
    """
    if not config.stage.enable_prefix_caching:
        return None
    assert worker.page_size is not None, "prefix caching needs pages"
    return PrefixScope(
        model=fingerprint_model(files),
        dtype=worker.dtype,
        page_size=worker.page_size,
        row_ranks=worker.topology.cfg,
        levels=config.stage.shared_levels,
    )


def request_keys(
    scope: PrefixScope, request: GenerationRequest, prepared: PreparedRequest
) -> PrefixKeys:
    """Return the keys of a request's prefix; pictures are hashed once, whoever sends them."""
    seed = prepared.sampling.reference_seed
    return prefix_keys(
        scope,
        prepared.rows,
        prepared.template,
        pictures=[image.digest for image in request.images],
        picture_seed=0 if seed is None else seed,
        parent_id=request.parent_id,
    )
