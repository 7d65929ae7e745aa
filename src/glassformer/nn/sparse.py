"""Attention to some of the keys, at a cost linear in length: Longformer's sliding window and BigBird's blocks.

Axes besides those of `nn`: E global tokens; N blocks, C tokens of a block, J blocks that a block sees.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import BlocksConfig, SlidingConfig, SparseConfig
from glassformer.nn import blocks, random_blocks
from glassformer.nn import mask as masks
from glassformer.nn.attend import attend
from glassformer.nn.fused import fused
from glassformer.nn.mixer import Context, Kept, Mixer
from glassformer.nn.state import KVState, State
from glassformer.nn.tap import Tap, recording


class Sparse(Mixer):
    """What both have in common: projections, heads and what is traced."""

    def __init__(self, config: SparseConfig, d_model: int) -> None:
        super().__init__()
        self.n_heads, d_inner = config.n_heads, config.n_heads * config.head_size(d_model)
        self.query = nn.Linear(d_model, d_inner, bias=config.bias)
        self.key = nn.Linear(d_model, d_inner, bias=config.bias)
        self.value = nn.Linear(d_model, d_inner, bias=config.bias)
        self.out = nn.Linear(d_inner, d_model, bias=config.bias if config.out_bias is None else config.out_bias)
        self.q, self.k, self.v = Tap("B H T K"), Tap("B H S K"), Tap("B H S K")
        self.scores, self.pattern = Tap("B H T S"), Tap("B H T S")
        self.z, self.result = Tap("B H T K"), Tap("B T D")

    def kept(self) -> Kept:
        return Kept(per_token=self.key.out_features + self.value.out_features)

    def _split(self, x_BTE: Tensor) -> Tensor:
        """The heads of a projection, (B, H, T, K)."""
        return x_BTE.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def _joined(self, z_BHTK: Tensor) -> Tensor:
        return self.result(self.out(self.z(z_BHTK).transpose(1, 2).flatten(2)))


class SlidingAttention(Sparse):
    """A window around each token, and global tokens (Beltagy et al. 2020, arXiv:2004.05150, section 3.1).

    A token sees those at most ``reach`` steps of ``dilation`` places away, and global ones; a global token sees all,
    by projections of its own: ``softmax(Q_g K_gᵀ/√K) V_g``. Each global token costs one row and one column, so that the
    cost is linear in length as long as they are few; if most are global, it is dense attention.
    """

    def __init__(self, config: SlidingConfig, d_model: int) -> None:
        super().__init__(config, d_model)
        self.config = config
        if not config.causal:
            self.query_global, self.key_global, self.value_global = (
                nn.Linear(d_model, self.query.out_features, bias=config.bias) for _ in range(3)
            )
            self.k_global, self.v_global = Tap("B H S K"), Tap("B H S K")

    def init_state(self) -> KVState:
        return KVState(self.config.reach * self.config.dilation + 1)

    def flops(self, context: int) -> int:
        sides = 1 if self.config.causal else 2
        return 4 * min(context, sides * self.config.reach + 1) * self.query.out_features

    def shape(self) -> str:
        config = self.config
        size = self.query.out_features // self.n_heads
        steps = f" in steps of {config.dilation}" if config.dilation > 1 else ""
        return (
            f"{self.n_heads} × {size}{', causal' if config.causal else ''}, {config.reach} places{steps} to each side"
        )

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        q_BHTK, k_BHSK, v_BHSK = (self._split(part(x_BTD)) for part in (self.query, self.key, self.value))
        if state is not None:
            assert isinstance(state, KVState)
            k_BHSK, v_BHSK = state.append(k_BHSK, v_BHSK, ctx.start)
        n_keys = k_BHSK.shape[2]
        real_BS = None if ctx.mask_BS is None else ctx.mask_BS[:, -n_keys:]
        global_BT = self._global(x_BTD, ctx, real_BS)
        if recording():
            return self._traced(x_BTD, q_BHTK, k_BHSK, v_BHSK, real_BS, global_BT)
        places_BE, there_BE = _few(global_BT) if global_BT is not None else (None, None)
        if not self._pays(q_BHTK.shape[2], n_keys, 0 if places_BE is None else places_BE.shape[1]):
            z_BHTK = fused(q_BHTK, k_BHSK, v_BHSK, self._seen(q_BHTK.shape[2], real_BS, global_BT, k_BHSK))
        else:
            z_BHTK = self._by_blocks(q_BHTK, k_BHSK, v_BHSK, real_BS, places_BE, there_BE)
        if places_BE is not None and there_BE is not None and places_BE.shape[1]:
            z_BHTK = self._from_everywhere(x_BTD, z_BHTK, real_BS, places_BE, there_BE)
        return self._joined(z_BHTK)

    def _global(self, x_BTD: Tensor, ctx: Context, real_BS: Tensor | None) -> Tensor | None:
        """Which tokens are global, (B, T)."""
        if self.config.causal:
            return None
        global_BT = ctx.global_BT
        if global_BT is None:
            if self.config.global_tokens == "none":
                return None
            real_BT = torch.ones_like(x_BTD[..., 0], dtype=torch.bool) if real_BS is None else real_BS
            global_BT = real_BT.cumsum(1) == 1
        return global_BT if real_BS is None else global_BT & real_BS

    def _pays(self, n_queries: int, n_keys: int, n_global: int) -> bool:
        """Whether blocks are faster than one dense mask."""
        before, after, step = self._band()
        return blocks.pays(n_queries // step, n_keys // step, before + n_global, after)

    def _band(self) -> tuple[int, int, int]:
        reach = self.config.reach
        return reach, 0 if self.config.causal else reach, self.config.dilation

    def _seen(self, n_queries: int, real_BS: Tensor | None, global_BT: Tensor | None, like: Tensor) -> Tensor:
        """Which keys each query sees, but for those of global tokens, broadcastable to (B, H, T, S)."""
        before, after, step = self._band()
        seen = masks.band(n_queries, like.shape[2], before, after, every=step, device=like.device)[None, None]
        if global_BT is not None:
            seen = seen | masks.padding(global_BT)
        return seen if real_BS is None else seen & masks.padding(real_BS)

    def _by_blocks(
        self,
        q_BHTK: Tensor,
        k_BHSK: Tensor,
        v_BHSK: Tensor,
        real_BS: Tensor | None,
        places_BE: Tensor | None,
        there_BE: Tensor | None,
    ) -> Tensor:
        """What each token takes from its window and from the global tokens."""
        before, after, step = self._band()
        more, n_queries = None, q_BHTK.shape[2]
        if places_BE is not None and there_BE is not None and places_BE.shape[1]:
            more = blocks.Everywhere(_at(k_BHSK, places_BE), _at(v_BHSK, places_BE), there_BE)
            if real_BS is None:
                real_BS = torch.ones(len(q_BHTK), k_BHSK.shape[2], dtype=torch.bool, device=q_BHTK.device)
            # Those of the window that are global count once.
            real_BS = real_BS & ~torch.zeros_like(real_BS).scatter(1, places_BE, there_BE)
        if step > 1:
            # Every ``step``-th token makes a text of its own; padding on the left keeps queries beside their keys.
            rest = -k_BHSK.shape[2] % step
            real_BS = q_BHTK.new_ones(len(q_BHTK), k_BHSK.shape[2], dtype=torch.bool) if real_BS is None else real_BS
            real_BS = F.pad(real_BS, (rest, 0)).unflatten(1, (-1, step)).transpose(1, 2).flatten(0, 1)
            q_BHTK, k_BHSK, v_BHSK = (_every(x, step) for x in (q_BHTK, k_BHSK, v_BHSK))
            more = None if more is None else blocks.Everywhere(*(x.repeat_interleave(step, 0) for x in more))
        z_BHTK = blocks.banded(q_BHTK, k_BHSK, v_BHSK, before, after, mask_BS=real_BS, more=more)
        if step > 1:
            z_BHTK = z_BHTK.unflatten(0, (-1, step)).permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, -n_queries:]
        return z_BHTK

    def _from_everywhere(
        self, x_BTD: Tensor, z_BHTK: Tensor, real_BS: Tensor | None, places_BE: Tensor, there_BE: Tensor
    ) -> Tensor:
        """The same with what global tokens take from all in their places."""
        d_model = x_BTD.shape[-1]
        x_BED = x_BTD.gather(1, places_BE[..., None].expand(-1, -1, d_model))
        q_BHEK = self._split(self.query_global(x_BED))
        k_BHSK, v_BHSK = self._split(self.key_global(x_BTD)), self._split(self.value_global(x_BTD))
        own_BHEK = fused(q_BHEK, k_BHSK, v_BHSK, None if real_BS is None else masks.padding(real_BS))
        own_BHEK = torch.where(there_BE[:, None, :, None], own_BHEK, _at(z_BHTK, places_BE))
        return z_BHTK.scatter(2, _spread(places_BE, z_BHTK), own_BHEK)

    def _traced(
        self,
        x_BTD: Tensor,
        q_BHTK: Tensor,
        k_BHSK: Tensor,
        v_BHSK: Tensor,
        real_BS: Tensor | None,
        global_BT: Tensor | None,
    ) -> Tensor:
        """The same with every score in sight; rows of global tokens show their own projections."""
        seen = self._seen(q_BHTK.shape[2], real_BS, global_BT, k_BHSK)
        k_BHSK, v_BHSK = self.k(k_BHSK), self.v(v_BHSK)
        if self.config.causal:
            explicit = partial(attend, path="explicit", see_scores=self.scores, see_pattern=self.pattern)
            return self._joined(explicit(self.q(q_BHTK), k_BHSK, v_BHSK, mask=seen))
        own_BHTK, k_own, v_own = (
            self._split(part(x_BTD)) for part in (self.query_global, self.key_global, self.value_global)
        )
        k_own, v_own = self.k_global(k_own), self.v_global(v_own)
        everywhere = torch.zeros_like(x_BTD[..., 0], dtype=torch.bool) if global_BT is None else global_BT
        row_B1T1 = everywhere[:, None, :, None]
        q_BHTK = self.q(torch.where(row_B1T1, own_BHTK, q_BHTK))
        real = seen.new_ones(1, 1, 1, 1) if real_BS is None else masks.padding(real_BS)
        found: list[Tensor] = []

        def see(x: Tensor) -> Tensor:
            found.append(x)
            return x

        explicit = partial(attend, path="explicit", see_scores=see, see_pattern=see)
        z_BHTK, z_own = explicit(q_BHTK, k_BHSK, v_BHSK, mask=seen), explicit(q_BHTK, k_own, v_own, mask=real)
        scores, pattern, scores_own, pattern_own = found
        self.scores(torch.where(row_B1T1, scores_own, scores))
        self.pattern(torch.where(row_B1T1, pattern_own, pattern))
        return self._joined(torch.where(row_B1T1, z_own, z_BHTK))


def _few(global_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The places of global tokens, (B, E), as many as the row with most has, and which of them are."""
    count_B = global_BT.sum(1)
    most = int(count_B.max()) if len(count_B) else 0
    places_BE = (~global_BT).long().argsort(dim=1, stable=True)[:, :most]
    return places_BE, torch.arange(most, device=global_BT.device) < count_B[:, None]


def _spread(places_BE: Tensor, like_BHTK: Tensor) -> Tensor:
    return places_BE[:, None, :, None].expand(-1, like_BHTK.shape[1], -1, like_BHTK.shape[3])


def _at(x_BHTK: Tensor, places_BE: Tensor) -> Tensor:
    """What stands at these places, (B, H, E, K)."""
    return x_BHTK.gather(2, _spread(places_BE, x_BHTK))


def _every(x_BHTK: Tensor, step: int) -> Tensor:
    """Every ``step``-th token as a row of its own, (B·step, H, T/step, K)."""
    x_BHTK = F.pad(x_BHTK, (0, 0, -x_BHTK.shape[2] % step, 0))
    return x_BHTK.unflatten(2, (-1, step)).permute(0, 3, 1, 2, 4).flatten(0, 1)


class BlockAttention(Sparse):
    """Each block of tokens sees its neighbours, the first, the last and some random ones; those two see all.

    Zaheer et al. 2020, arXiv:2007.14062, section 2 and appendix D. Blocks are counted from a row's first real token, so
    that padding changes nothing; the last one may be shorter. A block that stands twice among those seen counts twice.
    """

    def __init__(self, config: BlocksConfig, d_model: int) -> None:
        super().__init__(config, d_model)
        self.config = config

    def init_state(self) -> State:
        raise NotImplementedError("blocks see later ones: there is nothing to decode from left to right")

    def flops(self, context: int) -> int:
        seen = (5 + self.config.random) * self.config.block
        return 4 * (context if context <= self._whole() else seen) * self.query.out_features

    def shape(self) -> str:
        size, config = self.query.out_features // self.n_heads, self.config
        return f"{self.n_heads} × {size}, blocks of {config.block}, {config.random} at random"

    def _whole(self) -> int:
        """Length of the longest text that is read whole."""
        return (5 + 2 * self.config.random) * self.config.block

    def _plan(self, n_blocks: int) -> tuple[Tensor, Tensor]:
        """The blocks that each one but the first and the last sees, (H or 1, N, J), and how often each counts, (J)."""
        config = self.config
        middle_N1 = torch.arange(1, n_blocks - 1)[:, None]
        near_NJ = torch.cat(
            [torch.zeros_like(middle_N1), middle_N1 + torch.arange(-1, 2), middle_N1 * 0 + n_blocks - 1], 1
        )
        if config.drawn == "training" and not self.training:
            return near_NJ[None], torch.tensor([1.0 + config.random, 1, 1, 1, 1])
        drawn_HNJ = random_blocks.drawn(
            config.seed, self.n_heads, n_blocks, config.random, config.block, config.plan_len
        )
        seen_HNJ = torch.cat([near_NJ.expand(self.n_heads, -1, -1), torch.from_numpy(drawn_HNJ)], 2)
        return seen_HNJ, torch.ones(seen_HNJ.shape[2])

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        n_tokens, real_BT = x_BTD.shape[1], ctx.mask_BS
        longest = n_tokens if real_BT is None else int(real_BT.sum(1).max())
        if recording() or longest <= self._whole():
            return self._dense(x_BTD, real_BT)
        if real_BT is None:
            return self._joined(self._by_blocks(*self._projected(x_BTD)))
        # Real tokens move to the front, and rows of equally many blocks are read together.
        order_BT = (~real_BT).long().argsort(dim=1, stable=True)
        q, k, v = self._projected(x_BTD.gather(1, order_BT[..., None].expand_as(x_BTD)))
        length_B = real_BT.sum(1)
        kind_B = torch.where(length_B <= self._whole(), 0, -(-length_B // self.config.block))
        z_BHTK = torch.zeros_like(q)
        for kind in kind_B.unique().tolist():
            rows = (kind_B == kind).nonzero()[:, 0]
            real_RT = torch.arange(n_tokens, device=x_BTD.device) < length_B[rows, None]
            q_r, k_r, v_r = q[rows], k[rows], v[rows]
            if kind == 0:
                z = fused(q_r, k_r, v_r, masks.padding(real_RT))
            else:
                width = min(n_tokens, kind * self.config.block)
                z = self._by_blocks(q_r[:, :, :width], k_r[:, :, :width], v_r[:, :, :width], real_RT[:, :width])
                z = F.pad(z, (0, 0, 0, n_tokens - width))
            z_BHTK = z_BHTK.index_copy(0, rows, z)
        back_BT = order_BT.argsort(1)
        return self._joined(_at(z_BHTK, back_BT))

    def _projected(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self._split(self.query(x_BTD)), self._split(self.key(x_BTD)), self._split(self.value(x_BTD))

    def _by_blocks(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, real_BT: Tensor | None = None) -> Tensor:
        """Attention of rows of equally many blocks, which begin with their first token."""
        (batch, heads, n_tokens, _), size = q_BHTK.shape, self.config.block
        rest = -n_tokens % size
        if rest:
            real_BT = q_BHTK.new_ones(batch, n_tokens, dtype=torch.bool) if real_BT is None else real_BT
            real_BT = F.pad(real_BT, (0, rest))
        q_BHNCK, k_BHNCK, v_BHNCK = (
            F.pad(x, (0, 0, 0, rest)).unflatten(2, (-1, size)) for x in (q_BHTK, k_BHTK, v_BHTK)
        )
        n_blocks, device = q_BHNCK.shape[2], q_BHTK.device
        ends = fused(
            torch.cat([q_BHNCK[:, :, 0], q_BHNCK[:, :, -1]], 2),
            k_BHNCK.flatten(2, 3),
            v_BHNCK.flatten(2, 3),
            None if real_BT is None else masks.padding(real_BT),
        )
        seen_HNJ, times_J = (x.to(device) for x in self._plan(n_blocks))
        seen_HNJ = seen_HNJ.expand(heads, -1, -1)
        first_BH = torch.arange(batch * heads, device=device).view(batch, heads, 1, 1) * n_blocks
        at = (first_BH + seen_HNJ).flatten()
        k_PEK, v_PEK = (  # P = B·H·N problems of one head, each with J·C keys
            x.flatten(0, 2).index_select(0, at).unflatten(0, (-1, seen_HNJ.shape[2])).flatten(1, 2)
            for x in (k_BHNCK, v_BHNCK)
        )
        # The second block's left neighbour is the first block, the last but one's right neighbour the last one.
        once_NJ = torch.ones(n_blocks - 2, seen_HNJ.shape[2], dtype=torch.bool, device=device)
        once_NJ[0, 1], once_NJ[-1, 3] = False, False
        mask = once_NJ.repeat_interleave(size, 1).expand(batch, heads, -1, -1)
        if real_BT is not None:
            real_BNC = real_BT.unflatten(1, (-1, size))
            mask = mask & real_BNC[:, seen_HNJ].flatten(3)
        bias = None if bool((times_J == 1).all()) else times_J.log().repeat_interleave(size)[None, None, None]
        middle = fused(
            q_BHNCK[:, :, 1:-1].flatten(0, 2)[:, None],
            k_PEK[:, None],
            v_PEK[:, None],
            mask.flatten(0, 2)[:, None, None],
            bias=bias,
        )
        middle = middle[:, 0].unflatten(0, (batch, heads, -1)).flatten(2, 3)
        return torch.cat([ends[:, :, :size], middle, ends[:, :, size:]], 2)[:, :, :n_tokens]

    def _dense(self, x_BTD: Tensor, real_BT: Tensor | None) -> Tensor:
        """The same with every score in sight: how often a key counts is a bias of its score."""
        q, k, v = self._projected(x_BTD)
        mask, bias = None if real_BT is None else masks.padding(real_BT), None
        real_BT = torch.ones_like(x_BTD[..., 0], dtype=torch.bool) if real_BT is None else real_BT
        if int(real_BT.sum(1).max()) > self._whole():
            times_BHTS = torch.stack([self._times(row) for row in real_BT])
            mask = (times_BHTS > 0) & masks.padding(real_BT)
            bias = times_BHTS.clamp(min=1).log()
        if not recording():
            return self._joined(fused(q, k, v, mask, bias=bias))
        explicit = partial(attend, path="explicit", see_scores=self.scores, see_pattern=self.pattern)
        return self._joined(explicit(self.q(q), self.k(k), self.v(v), mask=mask, bias=bias))

    def _times(self, real_T: Tensor) -> Tensor:
        """How often each token of a row sees each other one, (H, T, S)."""
        length, size = int(real_T.sum()), self.config.block
        if length <= self._whole():
            return torch.ones(self.n_heads, len(real_T), len(real_T), device=real_T.device)
        n_blocks = -(-length // size)
        seen_HNJ, times_J = self._plan(n_blocks)
        times_HNN = torch.ones(self.n_heads, n_blocks, n_blocks)
        middle = torch.zeros(self.n_heads, n_blocks - 2, n_blocks)
        once_NJ = times_J.repeat(n_blocks - 2, 1)
        once_NJ[0, 1], once_NJ[-1, 3] = 0, 0
        seen_HNJ, once_HNJ = (x.expand(self.n_heads, -1, -1) for x in (seen_HNJ, once_NJ))
        times_HNN[:, 1:-1] = middle.scatter_add(2, seen_HNJ, once_HNJ)
        block_T = ((real_T.cumsum(0) - 1).clamp(min=0) // size).cpu()
        return times_HNN[:, block_T][:, :, block_T].to(real_T.device)
