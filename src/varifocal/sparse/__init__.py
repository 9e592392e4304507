"""Dynamic sparse attention with PRR: speculate, reuse, repair; the bits are those of plain. [PRR]

Decoding over a long text attends to the blocks of keys that a selector finds best for each query.
Selection is slow, so blocks are guessed and attended to while it runs; what was guessed right is
reused, what was missed is repaired, what was guessed wrong is left out. `huggingface` lets models
of transformers decode with it.
"""

from varifocal.sparse.accounting import HitRate
from varifocal.sparse.blocks import BlockCache, CacheShape
from varifocal.sparse.guard import GuardedSpeculation
from varifocal.sparse.phases import Line, PhaseTimes
from varifocal.sparse.predictors import PREDICTORS
from varifocal.sparse.queues import Queues, SingleQueue, TwoThreads
from varifocal.sparse.runtime import SparseAttention, Step
from varifocal.sparse.selection import Queries, Reach
from varifocal.sparse.selectors import SELECTORS
from varifocal.sparse.speculation import FixedSpeculation, ProfiledSpeculation, Speculation
from varifocal.sparse.timeline import Timeline

__all__ = [
    "PREDICTORS",
    "SELECTORS",
    "BlockCache",
    "CacheShape",
    "FixedSpeculation",
    "GuardedSpeculation",
    "HitRate",
    "Line",
    "PhaseTimes",
    "ProfiledSpeculation",
    "Queries",
    "Queues",
    "Reach",
    "SingleQueue",
    "SparseAttention",
    "Speculation",
    "Step",
    "Timeline",
    "TwoThreads",
]
