"""What decoding asks of a model: this and nothing else, so that any family and any engine can be driven."""

from typing import Protocol, TypeVar

from torch import Tensor


class DecodeState(Protocol):
    """Everything that one decoding remembers between steps.

    Attributes:
        length: target positions read so far.
        logits_BV: what follows the prompt, until the first step or reordering; None where `start` read none.
    """

    length: int
    logits_BV: Tensor | None

    def select(self, index_N: Tensor) -> None:
        """Makes row i the old row `index_N[i]`, in place: expands, reorders and shrinks the batch."""

    def truncate(self, length: int) -> None:
        """Forgets every position from `length` on, in place, as if it had never been read.

        Only speculative decoding takes back what it read.
        """


StateT = TypeVar("StateT", bound=DecodeState)


class Decodable(Protocol[StateT]):
    """A model that search can drive."""

    def start(self, source_BS: Tensor, source_mask_BS: Tensor | None = None) -> StateT:
        """Reads the sources once and returns a state of B rows.

        An encoder–decoder encodes them, and its targets begin with `<s>`. A decoder reads them as prompts, whose
        targets go on from them: its state holds `logits_BV`, and `Request.bos_id` is None.
        """

    def step(self, tokens_BT: Tensor, state: StateT, *, last_only: bool = True) -> Tensor:
        """Appends the tokens to the state and predicts what follows.

        Returns:
            The logits (B, V) of the last position; with `last_only=False` those of every new position, (B, T, V).
        """
