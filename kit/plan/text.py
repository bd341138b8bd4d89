"""A plan as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from kit.plan.plan import Plan
from kit.plan.size import SizePlan

_GIB = 2**30
_COLUMNS = ("size", "rows x tokens", "pages", "KV", "denoise", "decode", "peak", "at once")


def describe_plan(plan: Plan) -> str:
    """Return the plan in lines; byte numbers are those of one rank."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    shared = ", ".join(f"{name} {size}" for name, size in plan.topology.items() if size > 1)
    ranks = f"{plan.num_ranks} ranks ({shared})" if plan.num_ranks > 1 else "1 rank"
    yield f"model {plan.model} on {ranks}"
    yield (
        f"device {plan.device}: {_gib(plan.device_bytes)} for each rank, "
        f"{_gib(plan.allowed_bytes)} may be taken"
    )
    pages = f", pages of {plan.page_size} tokens" if plan.page_size else ""
    yield (
        f"{plan.kv_mode}, {plan.backend} ({plan.kernel or 'no kernel in this build'}), "
        f"{plan.dtype}, VAE decoder in {plan.vae_dtype}{pages}"
    )
    yield ""
    yield "each rank holds"
    for part, num_bytes in sorted(plan.weights.items(), key=lambda item: -item[1]):
        yield f"  {_bytes(num_bytes)}  weights: {part}"
    yield f"  {_bytes(plan.weight_bytes)}  weights on the device, all"
    if plan.host_weight_bytes:
        yield f"  {_bytes(plan.host_weight_bytes)}  of host memory: weights that wait there"
    if plan.page_bytes is not None:
        yield (
            f"  {_bytes(plan.pool_bytes)}  page pool: {plan.num_pages} pages of "
            f"{plan.page_bytes} bytes"
        )
    if plan.kept_rows_bytes:
        yield f"  {_bytes(plan.kept_rows_bytes)}  contiguous rows, kept for graphs"
    yield f"  {_bytes(plan.load_peak_bytes)}  at the end of loading"
    if plan.mapped_bytes is not None:
        yield f"  {_bytes(plan.mapped_bytes)}  of the host, mapped while the largest file is read"
    yield ""
    shown = [_COLUMNS, *(_cells(size) for size in plan.sizes)]
    if plan.profiled is not None:
        shown.append(_cells(plan.profiled))
    widths = [max(len(row[column]) for row in shown) for column in range(len(_COLUMNS))]
    for row in shown:
        yield "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
    if plan.sizes[0].reference_tokens:
        yield (
            f"reference images: {plan.sizes[0].reference_tokens} tokens of each row, "
            f"{_gib(plan.sizes[0].activations.encode)} to encode one"
        )
    if plan.profiled is not None:
        yield "(last line: the largest request, which a start runs first)"
    yield from _notes(plan)


def _notes(plan: Plan) -> Iterator[str]:
    for size in plan.sizes:
        if size.refusal is not None:
            yield f"does not fit: {size.size}: {size.refusal}"
    if plan.page_size is not None:
        groups = plan.topology["data_parallel_size"]
        where = f" in each of {groups} groups" if groups > 1 else ""
        yield (
            f"requests that may hold pages at once{where}: max_num_seqs {plan.max_num_seqs}; "
            "one runs"
        )
    for warning in plan.warnings:
        yield f"warning: {warning}"
    if plan.num_ranks > 1:
        yield "several ranks: arithmetic over the published split, not measured"
    if plan.start_refusal is not None:
        yield f"this build does not start it: {plan.start_refusal}"


def _cells(size: SizePlan) -> tuple[str, ...]:
    return (
        size.size,
        f"{size.num_rows} x {size.row_tokens}",
        str(size.num_pages) if size.num_pages else "-",
        _gib(size.kv_bytes),
        _gib(size.activations.denoise),
        _gib(size.activations.decode),
        _gib(size.peak_bytes),
        str(size.num_requests),
    )


def _bytes(num_bytes: int) -> str:
    return f"{num_bytes:>15,} bytes {num_bytes / _GIB:8.3f} GiB"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.3f} GiB"
