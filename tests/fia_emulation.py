"""Test code only: Ascend's fused attention and its page write, computed in float32 on the CPU.

They refuse every breach of the operators' published rules. Nothing here was compared with an NPU:
what it proves is that our calls are legal by those rules, and that legal calls with these meanings
give the right picture. tests/npu_emulation.py registers them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

INT_MAX = 2147483647
PAGE = 128
MAX_QUERIES = 65536

ATTEND = (
    "npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *, "
    "Tensor? pse_shift=None, Tensor? atten_mask=None, SymInt[]? actual_seq_lengths=None, "
    "SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None, Tensor? quant_scale1=None, "
    "Tensor? dequant_scale2=None, Tensor? quant_scale2=None, Tensor? quant_offset2=None, "
    "Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, "
    "Tensor? key_antiquant_scale=None, Tensor? key_antiquant_offset=None, "
    "Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None, "
    "Tensor? block_table=None, Tensor? query_padding_size=None, Tensor? kv_padding_size=None, "
    "Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, "
    "SymInt[]? actual_shared_prefix_len=None, Tensor? query_rope=None, Tensor? key_rope=None, "
    "Tensor? key_rope_antiquant_scale=None, int num_heads=1, float scale=1.0, "
    "int pre_tokens=2147483647, int next_tokens=2147483647, "
    'str input_layout="BSH", int num_key_value_heads=0, int sparse_mode=0, '
    "int inner_precise=0, int block_size=0, int antiquant_mode=0, int key_antiquant_mode=0, "
    "int value_antiquant_mode=0, bool softmax_lse_flag=False) -> (Tensor, Tensor)"
)
WRITE = (
    "npu_scatter_pa_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, "
    "Tensor(b!) value_cache, Tensor slot_mapping, *, Tensor? compress_lens=None, "
    "Tensor? compress_seq_offsets=None, Tensor? seq_lens=None, str? cache_mode='PA_NZ') -> ()"
)
_USED = {
    "atten_mask",
    "actual_seq_lengths",
    "actual_seq_lengths_kv",
    "block_table",
    "num_heads",
    "scale",
    "input_layout",
    "num_key_value_heads",
    "sparse_mode",
    "block_size",
}


class ContractError(RuntimeError):
    """A call that the operator would refuse, or that it would get wrong in silence."""


CALLS: list[tuple[str, dict[str, Any]]] = []
"""(operator, its keyword arguments) of every call since the last clear()."""


def need(is_right: bool, why: str) -> None:
    if not is_right:
        raise ContractError(why)


def attend(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    """npu_fused_infer_attention_score over pages: TND, or BSH with one row per call."""
    CALLS.append(("attend", given))
    unknown = set(given) - _USED
    need(not unknown, f"arguments that do not go with pages, or that nothing uses: {unknown}")
    need(
        query.is_contiguous() and key.is_contiguous() and value.is_contiguous(),
        "query, key and value are contiguous",
    )
    need(
        query.dtype == key.dtype == value.dtype == torch.bfloat16,
        "query, key and value are bfloat16",
    )
    layout, num_heads = given.get("input_layout", "BSH"), given.get("num_heads", 1)
    if layout == "BSH":
        need(query.dim() == 3, "BSH: query is [B, S, N*D]")
        need(query.shape[2] % num_heads == 0 and query.shape[2] < 65535, "BSH: N*D below 65535")
        if given.get("block_table") is None:
            out = _attend_contiguous(query, key, value, given)
            return out.to(query.dtype), torch.zeros(0)
        need(query.shape[0] == 1, "BSH over pages: a row per call")
        need(given.get("actual_seq_lengths") in (None, [query.shape[1]]), "BSH: lengths are [S]")
        rows = query[0].unflatten(-1, (num_heads, -1))
        out = _attend_pages(rows, key, value, given | {"actual_seq_lengths": [query.shape[1]]})
        return out.flatten(1)[None].to(query.dtype), torch.zeros(0)
    need(layout == "TND" and query.dim() == 3, "TND: query is [T, N, D]")
    return _attend_pages(query, key, value, given).to(query.dtype), torch.zeros(0)


def _attend_contiguous(query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any]) -> Tensor:
    """Rows [B, S, H] of queries over rows [B, S, K*D] of keys, with the lengths of each."""
    B, T, width = query.shape
    H = given.get("num_heads", 1)
    K, D = given.get("num_key_value_heads", 0) or H, width // H
    _check_heads(H, K, D)
    need("block_size" not in given, "block_size goes with pages")
    need(key.dim() == 3 and key.shape == value.shape, "BSH: keys and values are [B, S, K*D]")
    need(key.shape[0] == B and key.shape[2] == K * D, f"BSH: keys of {B} rows of {K * D} elements")
    lens, kv_lens = _both_lengths(given)
    need(len(lens) == len(kv_lens) == B, "a length of each row")
    need(lens == [T] * B, f"BSH: query lengths, not ends; the rows have {T}")
    need(max(kv_lens) <= key.shape[1], f"BSH: key lengths, not ends; the rows have {key.shape[1]}")
    mode = _check_mode(given)
    need(mode == 0 or T > 1, "a lone query is decoding, for which there is no such mask")
    out = torch.zeros(B, T, width)
    for row, kv_len in enumerate(kv_lens):
        need(mode == 0 or kv_len >= T, f"mode 3, row {row}: {T} queries over {kv_len} keys")
        k, v = (x[row, :kv_len].unflatten(-1, (K, D)) for x in (key, value))
        seen = _softmax_attention(query[row].unflatten(-1, (H, D)), k, v, given, mode)
        out[row] = seen.flatten(1)
    return out


def _check_heads(H: int, K: int, D: int) -> None:
    need(H % K == 0 and H // K <= 64 and H <= 256, f"heads {H} over {K}")
    need(D in (64, 128), f"head size {D}")


def _check_mode(given: dict[str, Any]) -> int:
    mode: int = given.get("sparse_mode", 0)
    need(mode in (0, 3), f"sparse_mode {mode}")
    if mode == 0:
        need(given.get("atten_mask") is None, "mode 0 takes no mask")
    else:
        _check_mask(given.get("atten_mask"))
    return mode


def _softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any], mode: int
) -> Tensor:
    """[T, H, D] over [S, K, D], float32; mode 3 counts both from the last token."""
    group = query.shape[1] // key.shape[1]
    k, v = (x.float().repeat_interleave(group, 1) for x in (key, value))
    scores = torch.einsum("qnd,knd->nqk", query.float(), k)
    scores *= given.get("scale", 1.0)
    if mode == 3:
        last_seen = torch.arange(len(query))[:, None] + (len(key) - len(query))
        scores.masked_fill_(torch.arange(len(key)) > last_seen, float("-inf"))
    return torch.einsum("nqk,knd->qnd", scores.softmax(-1), v)


def _attend_pages(query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any]) -> Tensor:
    T, H, D = query.shape
    K = given.get("num_key_value_heads", 0) or given.get("num_heads", 1)
    need(given.get("num_heads", 1) == H, f"num_heads: the query has {H}")
    _check_heads(H, K, D)
    need(T <= MAX_QUERIES, f"{T} queries in one call")
    table = given.get("block_table")
    need(given.get("block_size", 0) == PAGE, f"block_size {given.get('block_size', 0)}")
    need(table is not None, "pages need block_table")
    assert isinstance(table, Tensor)
    need(
        table.dtype == torch.int32 and table.dim() == 2 and table.is_contiguous(),
        "block_table is int32, 2-D, contiguous",
    )
    need(key.shape == value.shape, "pages of key and value have one shape")
    if key.dim() == 3:
        need(key.shape[1:] == (PAGE, K * D), f"3-D pages are [N, {PAGE}, {K * D}]")
        need(K * D <= 65535, f"a page's row of {K * D} elements")
        keys, values = (pages.view(-1, PAGE, K, D) for pages in (key, value))
    else:
        need(
            key.dim() == 4 and key.shape[1:] == (K, PAGE, D),
            "4-D pages are [N, K, P, D], not the layout of the write",
        )
        keys, values = (pages.transpose(1, 2) for pages in (key, value))
    need(key.numel() <= INT_MAX, "page tensor of 2^31 elements")
    ends, kv_lens = _lengths(given, T)
    pages = [-(-kv_len // PAGE) for kv_len in kv_lens]
    need(sum(pages) > 0, "no keys at all")
    need(
        table.shape[0] == len(ends) and table.shape[1] >= max(pages),
        f"block_table {tuple(table.shape)} for {len(ends)} rows of up to {max(pages)} pages",
    )
    need(
        len(key) >= sum(pages), f"pool of {len(key)} pages, rows count {sum(pages)}, shared or not"
    )
    mode = _check_mode(given)
    out, start = torch.zeros(T, H, D), 0
    for row, (end, kv_len) in enumerate(zip(ends, kv_lens, strict=True)):
        num = end - start
        need(mode == 0 or num <= kv_len, f"mode 3, row {row}: {num} queries over {kv_len} keys")
        if num and kv_len:
            ids = table[row, : pages[row]].long()
            need(
                bool(((ids >= 0) & (ids < len(keys))).all()),
                f"row {row}: page id out of range, which a device would not notice",
            )
            k, v = (x[ids].flatten(0, 1)[:kv_len] for x in (keys, values))
            out[start:end] = _softmax_attention(query[start:end], k, v, given, mode)
        start = end
    return out


def _both_lengths(given: dict[str, Any]) -> tuple[list[int], list[int]]:
    names = ("actual_seq_lengths", "actual_seq_lengths_kv")
    need(all(given.get(name) is not None for name in names), "both length lists are given")
    lens, kv_lens = (list(given[name]) for name in names)
    need(all(type(x) is int and x >= 0 for x in lens + kv_lens), "lengths are host ints >= 0")
    return lens, kv_lens


def _lengths(given: dict[str, Any], num_queries: int) -> tuple[list[int], list[int]]:
    ends, kv_lens = _both_lengths(given)
    need(0 < len(ends) <= 4096 and len(kv_lens) == len(ends), "at most 4096 rows, both lists alike")
    need(ends == sorted(ends), "query lengths are cumulative")
    need(ends[-1] == num_queries, f"last query length {ends[-1]}, the query has {num_queries}")
    return ends, kv_lens


_HIDDEN = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def _check_mask(mask: Tensor | None) -> None:
    need(mask is not None, "mode 3 needs the mask of 2048x2048")
    assert mask is not None
    need(mask.dtype in (torch.bool, torch.int8, torch.uint8), f"mask of {mask.dtype}")
    need(tuple(mask.shape) == (2048, 2048), f"mask of {tuple(mask.shape)}")
    need(mask.is_contiguous(), "the mask is contiguous")
    need(torch.equal(mask.bool(), _HIDDEN), "the mask is 1 above the diagonal, 0 elsewhere")


def write(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    **given: Any,
) -> None:
    """npu_scatter_pa_kv_cache into ND pages."""
    CALLS.append(("write", given))
    need(given.get("cache_mode", "PA_NZ") == "Norm", "cache_mode: ND pages are Norm")
    need(set(given) <= {"cache_mode"}, "no compression")
    need(key.dim() == 3 and key.shape == value.shape, "key and value are [T, K, D]")
    need(key_cache.dim() == 4 and key_cache.shape == value_cache.shape, "pages are [N, P, K, D]")
    need(key_cache.shape[2:] == key.shape[1:], "heads of pages and tokens differ")
    need(
        key.dtype == value.dtype == key_cache.dtype == value_cache.dtype,
        "tokens and pages have one dtype",
    )
    need(
        all(x.is_contiguous() for x in (key, value, key_cache, value_cache, slot_mapping)),
        "everything is contiguous",
    )
    need(slot_mapping.dtype in (torch.int32, torch.int64), "slots are integers")
    need(slot_mapping.dim() == 1 and len(slot_mapping) == len(key), "one slot for each token")
    slots, num_slots = slot_mapping.long(), key_cache.shape[0] * key_cache.shape[1]
    need(bool(((slots >= 0) & (slots < num_slots)).all()), "slot out of range")
    need(len(slots.unique()) == len(slots), "two tokens for one slot")
    key_cache.flatten(0, 1)[slots] = key
    value_cache.flatten(0, 1)[slots] = value
