"""Device code of sparse attention in Triton; `triton_operations` launches it. Needs triton.

Letters: Q queries, H KV heads, G query heads of one KV head, S tokens of a block, D head width, U
blocks, N listed blocks, C chosen blocks. A *pair* is a query and a KV head. Upper-case parameters
are known when a kernel is compiled; those that end in _PAD are the next power of two, which tiles
must have, 16 at least where a tile is multiplied.

Speculation and repair have to round alike, so one binary serves both: whatever differs between them
is in `VARYING`, for which Triton makes no variants of its own. `no_type_check` keeps checkers of
annotations away from functions that are compiled from their source.
"""

from typing import no_type_check

import triton
import triton.language as tl

# Numbers that differ from launch to launch. Without this Triton would compile once more for each
# that is 1 or a multiple of 16, and two binaries need not round alike.
VARYING = ["start", "places", "units", "picked_count", "listed_count", "listed_row", "chosen_count"]
VARYING += ["missing_row", "kept_first", "kept_recent", "table_row"]

CHUNK = tl.constexpr(16)  # states, or list entries, that are read at once
UNRANKED = tl.constexpr(-(2**63))  # the key of what cannot be picked
LOW = tl.constexpr(2**31 - 1)  # a key is a score's 32 bits above these 31, which hold LOW - block


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def rank_kernel(
    query,  # [Q, H, G, D]
    least,  # [P, H, D]
    greatest,
    table,  # [R, table_row]
    rows,  # [Q]
    visible,  # [Q]
    keys,  # [Q, H, U], int64
    units,
    table_row,
    kept_first,  # blocks
    kept_recent,  # tokens
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    TILE: tl.constexpr,
):
    """Quest's bound as a key that ranks blocks: the score above, the lower number below."""
    pair = tl.program_id(0).to(tl.int64)
    number, head = pair // HEADS, pair % HEADS
    unit = tl.program_id(1) * TILE + tl.arange(0, TILE)
    seen = tl.load(visible + number)
    oldest = tl.maximum(seen - kept_recent, 0) // SIZE
    is_free = (unit >= kept_first) & (unit < oldest) & (unit < units)
    page = tl.load(table + tl.load(rows + number) * table_row + unit, mask=is_free, other=0)

    heads, width = tl.arange(0, GROUP_PAD), tl.arange(0, WIDTH_PAD)
    at = (pair * GROUP + heads[:, None]) * WIDTH + width[None, :]
    is_query = (heads[:, None] < GROUP) & (width[None, :] < WIDTH)
    q = tl.load(query + at, mask=is_query, other=0)
    bounds = (page[None, :] * HEADS + head) * WIDTH + width[:, None]
    is_bound = is_free[None, :] & (width[:, None] < WIDTH)
    low = tl.load(least + bounds, mask=is_bound, other=0)
    high = tl.load(greatest + bounds, mask=is_bound, other=0)
    zero = tl.zeros_like(q)
    # max(q low, q high) is q high where q is positive, q low where it is negative.
    scores = tl.dot(tl.maximum(q, zero), high, input_precision="ieee")
    scores = tl.dot(tl.minimum(q, zero), low, scores, input_precision="ieee")
    best = tl.max(tl.where(heads[:, None] < GROUP, scores, -float("inf")), 0)

    finite = tl.minimum(tl.maximum(best, -3.4028234663852886e38), 3.4028234663852886e38) + 0.0
    bits = finite.to(tl.int32, bitcast=True)  # of negative floats, greater bits are lower values
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    key = ordered * (LOW + 1) + (LOW - unit)
    key = tl.where(is_free, key, UNRANKED)
    tl.store(keys + pair * units + unit, key, mask=unit < units)


@triton.jit
@no_type_check
def member(index, picked, at, picked_count, seen, kept_first, kept_recent, SIZE, RECENT):
    """The block at `index` of kept and picked ones, laid end to end; -1: none."""
    oldest = tl.maximum(seen - kept_recent, 0) // SIZE
    is_first = index < kept_first
    back = (seen - 1) // SIZE - (index - kept_first)
    is_recent = (index < kept_first + RECENT) & (back >= tl.maximum(oldest, kept_first))
    begins = index * SIZE
    kept = tl.where(is_first, tl.where(begins < seen, index, -1), tl.where(is_recent, back, -1))
    place = index - kept_first - RECENT
    is_picked = (place >= 0) & (place < picked_count)
    key = tl.load(picked + at + place, mask=is_picked, other=UNRANKED)
    return tl.where(place < 0, kept, tl.where(key == UNRANKED, -1, LOW - (key & LOW)))


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def list_kernel(
    picked,  # [Q, H, picked_count], int64 keys
    visible,  # [Q]
    listed,  # [Q, H, listed_count], its rows listed_row apart
    picked_count,
    listed_count,
    listed_row,
    kept_first,
    kept_recent,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    RECENT: tl.constexpr,  # blocks that recent tokens can lie in
    TILE: tl.constexpr,
):
    """Kept and picked blocks in ascending order: each goes to the place of its rank."""
    pair = tl.program_id(0).to(tl.int64)
    seen = tl.load(visible + pair // HEADS)
    index = tl.program_id(1) * TILE + tl.arange(0, TILE)
    at = pair * picked_count
    own = member(index, picked, at, picked_count, seen, kept_first, kept_recent, SIZE, RECENT)
    place = tl.zeros_like(index)
    total = tl.zeros_like(index)
    for start in range(0, listed_count, CHUNK):
        others = start + tl.arange(0, CHUNK)
        other = member(
            others, picked, at, picked_count, seen, kept_first, kept_recent, SIZE, RECENT
        )
        is_block = (other >= 0)[None, :]
        place += tl.sum((is_block & (other[None, :] < own[:, None])).to(tl.int32), 1)
        total += tl.sum(is_block.to(tl.int32), 1)
    is_listed = index < listed_count
    to = listed + pair * listed_row
    tl.store(to + place, own.to(tl.int32), mask=is_listed & (own >= 0))
    tl.store(to + index, tl.full([TILE], -1, tl.int32), mask=is_listed & (index >= total))


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def attend_kernel(
    query,  # [Q, H, G, D], of the keys' dtype
    keys,  # [P, H, S, D]
    values,
    table,  # [R, table_row]
    rows,  # [Q]
    visible,  # [Q]
    blocks,  # [Q, H, places]
    peak,  # [Q, H, places, G]
    mass,
    total,  # [Q, H, places, G, D]
    scale,
    start,
    places,
    table_row,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
):
    """The state of one block for one query and KV head: a function of these alone."""
    pair = tl.program_id(0).to(tl.int64)
    place = pair * places + start + tl.program_id(1)
    block = tl.load(blocks + place)
    if block < 0:
        return
    number, head = pair // HEADS, pair % HEADS
    page = tl.load(table + tl.load(rows + number) * table_row + block)
    left = tl.load(visible + number) - block * SIZE

    heads, width, token = tl.arange(0, GROUP_PAD), tl.arange(0, WIDTH_PAD), tl.arange(0, SIZE_PAD)
    is_head, is_width = heads < GROUP, width < WIDTH
    is_seen = (token < SIZE) & (token < left)
    at = (pair * GROUP + heads[:, None]) * WIDTH + width[None, :]
    q = tl.load(query + at, mask=is_head[:, None] & is_width[None, :], other=0)
    own = (page * HEADS + head) * SIZE
    k = tl.load(
        keys + (own + token[None, :]) * WIDTH + width[:, None],
        mask=is_seen[None, :] & is_width[:, None],
        other=0,
    )
    v = tl.load(
        values + (own + token[:, None]) * WIDTH + width[None, :],
        mask=is_seen[:, None] & is_width[None, :],
        other=0,
    )
    logits = tl.dot(q, k, input_precision="ieee") * scale
    logits = tl.where(is_seen[None, :], logits, -float("inf"))
    top = tl.max(logits, 1)
    finite = tl.where(top == -float("inf"), 0.0, top)
    weights = tl.exp(logits - finite[:, None])
    if v.dtype == tl.float32:
        sums = tl.dot(weights, v, input_precision="ieee")
    else:
        # Tensor cores want both sides in the values' dtype. What rounding the weights to it loses
        # is multiplied too: in bfloat16 one part alone would keep 8 bits of them, both keep 16.
        rounded = weights.to(v.dtype)
        rest = (weights - rounded.to(tl.float32)).to(v.dtype)
        sums = tl.dot(rest, v, tl.dot(rounded, v))

    to = place * GROUP + heads
    tl.store(peak + to, top, mask=is_head)
    tl.store(mass + to, tl.sum(weights, 1), mask=is_head)
    to = to[:, None] * WIDTH + width[None, :]
    tl.store(total + to, sums, mask=is_head[:, None] & is_width[None, :])


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def find_kernel(
    listed,  # [Q, H, listed_count], its rows listed_row apart
    chosen,  # [Q, H, chosen_count]
    found,  # [Q, H, chosen_count]
    missing,  # [Q, H, chosen_count], its rows missing_row apart
    listed_count,
    listed_row,
    chosen_count,
    missing_row,
    TILE: tl.constexpr,
):
    """Where the list has each chosen block; what it lacks is missing, and follows the list."""
    pair = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_index = index < chosen_count
    block = tl.load(chosen + pair * chosen_count + index, mask=is_index, other=-1)
    place = tl.full([TILE], -1, tl.int32)
    for start in range(0, listed_count, CHUNK):
        entry = start + tl.arange(0, CHUNK)
        other = tl.load(listed + pair * listed_row + entry, mask=entry < listed_count, other=-1)
        is_same = (other[None, :] == block[:, None]) & (block[:, None] >= 0)
        place = tl.maximum(place, tl.max(tl.where(is_same, entry[None, :], -1), 1))
    is_missing = (block >= 0) & (place < 0)
    place = tl.where(is_missing, listed_count + index, place)
    tl.store(found + pair * chosen_count + index, place, mask=is_index)
    lacking = tl.where(is_missing, block, -1)
    tl.store(missing + pair * missing_row + index, lacking, mask=is_index)


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def merge_kernel(
    found,  # [Q, H, chosen_count]
    peak,  # [Q, H, places, G]
    mass,
    total,  # [Q, H, places, G, D]
    merged_peak,  # [Q, H, G]
    merged_mass,
    merged_total,  # [Q, H, G, D]
    output,  # the same, of any dtype
    places,
    chosen_count,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """One state from those at the places found, in their order: the peak first, then the sums.

    CHUNK states are added in the tree that the reduction was compiled to, then chunk after chunk.
    Places of -1 at the end add zeros, so the length of the list changes no bit.
    """
    one = tl.program_id(0).to(tl.int64)
    pair, head = one // GROUP, one % GROUP
    width = tl.program_id(1) * TILE + tl.arange(0, TILE)
    entry = tl.arange(0, CHUNK)
    tops = tl.full([CHUNK], -float("inf"), tl.float32)
    for start in range(0, chosen_count, CHUNK):
        is_entry = start + entry < chosen_count
        place = tl.load(found + pair * chosen_count + start + entry, mask=is_entry, other=-1)
        at = (pair * places + place) * GROUP + head
        top = tl.load(peak + at, mask=place >= 0, other=-float("inf"))
        tops = tl.maximum(tops, top)
    top = tl.max(tops, 0)
    finite = tl.where(top == -float("inf"), 0.0, top)

    weight = 0.0
    sums = tl.zeros([TILE], tl.float32)
    for start in range(0, chosen_count, CHUNK):
        is_entry = start + entry < chosen_count
        place = tl.load(found + pair * chosen_count + start + entry, mask=is_entry, other=-1)
        at = (pair * places + place) * GROUP + head
        is_state = place >= 0
        factor = tl.exp(tl.load(peak + at, mask=is_state, other=-float("inf")) - finite)
        weight += tl.sum(factor * tl.load(mass + at, mask=is_state, other=0.0), 0)
        part = tl.load(
            total + at[:, None] * WIDTH + width[None, :],
            mask=is_state[:, None] & (width[None, :] < WIDTH),
            other=0.0,
        )
        sums += tl.sum(factor[:, None] * part, 0)

    if tl.program_id(1) == 0:
        tl.store(merged_peak + one, top)
        tl.store(merged_mass + one, weight)
    is_width = width < WIDTH
    tl.store(merged_total + one * WIDTH + width, sums, mask=is_width)
    shares = sums / tl.where(weight == 0, 1.0, weight)
    tl.store(output + one * WIDTH + width, shares.to(output.dtype.element_ty), mask=is_width)


INTERPRETED = not isinstance(attend_kernel, triton.JITFunction)  # TRITON_INTERPRET=1 was set
IS_LATE = isinstance(tl.max, triton.JITFunction)  # triton's own functions would be compiled
