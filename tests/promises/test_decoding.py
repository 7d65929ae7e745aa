"""What users are promised of decoding, each promise by one test that quotes it, end to end where that is short.

The laws behind them, on random input and against independent oracles, are held in tests/laws.
"""

from __future__ import annotations

import json
import math
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import glassformer as gf
from glassformer.errors import UserError
from glassformer.families import configure
from glassformer.generate import (
    Constraints,
    MinP,
    NoRepeatNgram,
    SamplingConfig,
    SearchConfig,
    TopP,
    Typical,
    generate,
    search,
)
from glassformer.models.build import build_model
from glassformer.nn import mask as masks
from glassformer.nn import state as states
from glassformer.nn.attend import attend
from glassformer.text.pipeline import translate_text
from glassformer.train.setup import longest_example
from tests.promises.conftest import POSITIONS, check_each_promise_has_its_test, write
from tests.toys import BOS, EOS, PAD, ScriptModel, TableModel, batch, request, score, teacher_forced

PROMISES = """
A sentence's translation does not depend on batch size
A sentence's translation does not depend on order
A sentence's translation does not depend on batch mates
stopping is per sentence
Cached ≡ uncached in fp32
unused cache slots are never read
every state moves together under beam reorder
n-best are distinct and sorted
n-best > beam is an error that names both flags
the top result does not depend on n-best
Beam search stops only when no live hypothesis can win
One documented length-penalty formula, α = 0 is the raw sum
the printed score can be recomputed
A forced target prefix is extended, ragged prefixes included
no repeated-n-gram scope surprises
temperature 0 is greedy
top-p keeps at least one token
A fully masked row gives finite values forward and backward on every path
masks are combined as booleans
softmax in fp32 under fp16
Left padding does not move positions
The limit of a position table is checked first and stated: in training
The limit of a position table is checked first and stated: in decoding
pad and `<s>` are never produced
padded vocabulary rows are masked
Loops are detected, retried, and flagged in the output
Hallucinations that are the source again or nothing are flagged in the output
Real word alignments (Pharaoh) on request
layer and heads can be chosen
""".strip().split("\n")

TEXTS = [
    "我爱打篮球。",
    "The cat sat.",
    "我喜欢语言处理，自然。",
    "I love the mat",
    "篮球",
    "natural language processing",
]
OPTIONS = {"beam_size": 4, "n_best": 3, "max_new_tokens": 8, "no_repeat_ngram": 2, "details": True}


def test_each_promise():
    check_each_promise_has_its_test(sys.modules[__name__], PROMISES)


def same(found: list[dict], expected: list[dict]) -> None:
    """The same texts, and scores but for the last bits of float32."""
    for one, other in zip(found, expected, strict=True):
        assert [c["translation"] for c in one["n_best"]] == [c["translation"] for c in other["n_best"]]
        scores = [[c["score"] for c in record["n_best"]] for record in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_a_translation_does_not_depend_on_batch_size(translator):
    """A sentence's translation does not depend on batch size"""
    alone = translator.translate(TEXTS, batch_tokens=1, **OPTIONS)
    for batch_tokens in (40, 150, 4000):
        same(translator.translate(TEXTS, batch_tokens=batch_tokens, **OPTIONS), alone)


def test_a_translation_does_not_depend_on_order(translator):
    """A sentence's translation does not depend on order"""
    same(translator.translate(TEXTS[::-1], **OPTIONS)[::-1], translator.translate(TEXTS, **OPTIONS))


def test_a_translation_does_not_depend_on_batch_mates(translator):
    """A sentence's translation does not depend on batch mates"""
    together = translator.translate(TEXTS, **OPTIONS)
    for record, text in zip(together, TEXTS, strict=True):
        same([record], translator.translate([text], **OPTIONS))
        same([record], translator.translate([text, "x" * 40, "爱"], **OPTIONS)[:1])


def test_stopping_is_per_sentence():
    """stopping is per sentence"""
    sources = [(3,), (4, 4), (5, 3, 4), (3, 5, 5, 4)]
    config = SearchConfig(max_new_tokens=12)
    model = TableModel(2, vocab=9)
    together = search(model, *batch(sources), config, request())
    assert model.batch_sizes == sorted(model.batch_sizes, reverse=True) and model.batch_sizes[-1] < 4
    alone, steps = [], []
    for source in sources:
        one = TableModel(2, vocab=9)
        alone += search(one, *batch([source]), config, request())
        steps.append(len(one.batch_sizes))
    assert together == alone
    assert len(set(steps)) > 1 and len(model.batch_sizes) == max(steps)


def pieces_of(translator, count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    vocab = translator.tokenizer.vocab_size
    return torch.randint(5, vocab, (count, 7)), torch.randint(5, vocab, (count, length))


def test_decoding_step_by_step_equals_teacher_forcing(translator):
    """Cached ≡ uncached in fp32"""
    model = translator.model
    source_BS, target_BT = pieces_of(translator, 3, 20)
    with torch.no_grad():
        whole_BTV, state = model(source_BS, target_BT), model.start(source_BS)
        for t in range(20):
            torch.testing.assert_close(
                model.step(target_BT[:, t : t + 1], state), whole_BTV[:, t], rtol=1e-5, atol=1e-4
            )


def test_unused_cache_slots_are_never_read(translator, monkeypatch):
    """unused cache slots are never read"""
    before = translator.translate(TEXTS, **OPTIONS)
    room = states._room
    monkeypatch.setattr(states, "_room", lambda like, slots: room(like, slots).fill_(math.nan))
    assert translator.translate(TEXTS, **OPTIONS) == before


def test_every_state_moves_together(translator):
    """every state moves together under beam reorder"""
    model = translator.model
    source_BS, target_BT = pieces_of(translator, 4, 5)
    mask_BS = torch.arange(7) < torch.tensor([[7], [3], [5], [1]])
    index_N = torch.tensor([2, 2, 0, 3, 1])
    with torch.no_grad():
        state = model.start(source_BS, mask_BS)
        model.step(target_BT[:, :4], state)
        state.select(index_N)
        found_NV = model.step(target_BT[index_N, 4:], state)
        expected_NV = model(source_BS[index_N], target_BT[index_N], mask_BS[index_N])[:, -1]
    torch.testing.assert_close(found_NV, expected_NV, rtol=1e-5, atol=1e-4)


def test_n_best_are_distinct_and_sorted(run, model):
    """n-best are distinct and sorted"""
    code, out, _ = run("translate", "-m", model, "-b", 6, "--n-best", 6, "--format", "jsonl", *TEXTS)
    assert code == 0
    for record in map(json.loads, out.splitlines()):
        texts = [candidate["translation"] for candidate in record["n_best"]]
        scores = [candidate["score"] for candidate in record["n_best"]]
        assert len(texts) > 1 and len(set(texts)) == len(texts) and scores == sorted(scores, reverse=True)
        assert (record["translation"], record["score"]) == (texts[0], scores[0])


def test_n_best_above_the_beam_names_both_flags(run, model):
    """n-best > beam is an error that names both flags"""
    code, out, err = run("translate", "-m", model, "-b", 2, "--n-best", 3, "--format", "jsonl", "x")
    assert (code, out) == (2, "") and "--n-best 3" in err and "--beam-size 2" in err and err.count("\n") == 1


def test_the_top_result_does_not_depend_on_n_best(translator):
    """the top result does not depend on n-best"""
    top = translator.translate(TEXTS, beam_size=5, max_new_tokens=8)
    for n_best in (2, 3, 5):
        assert translator.translate(TEXTS, beam_size=5, max_new_tokens=8, n_best=n_best) == top
    # [3] is soon the best of the first group, whose other hypothesis can win no more; yet what that goes on to write,
    # 7, keeps the second group from the path that would beat [3].
    script = {(): {3: 0.4, 4: 0.3, 5: 0.2, 6: 0.1}, (4, 10): {7: 1.0}}
    script |= {(4,): {**dict.fromkeys(range(3, 23), 0.94 / 19), 10: 0.06}}
    script |= {(5,): {11: 1.0}, (5, 11): {7: 0.51, 8: 0.49}}
    script |= {(5, 11, 7, 12, 13, 14)[:n]: {(12, 13, 14, 15)[n - 3]: 1.0} for n in range(3, 7)}
    for n_best in (1, 2, 4):
        config = SearchConfig(4, n_best, length_penalty=2.0, max_new_tokens=9, groups=2, diversity=3.0)
        (found,) = search(ScriptModel(script, vocab=24), *batch([(3,)]), config, request())
        assert found[0].ids == (3,)


def test_a_later_hypothesis_wins_while_it_can():
    """Beam search stops only when no live hypothesis can win"""
    # [3] ends at once with log 0.4. The other path costs log 0.3 in all and ends five tokens later.
    path = {(): {3: 0.4, 4: 0.3, 5: 0.3}, (4,): {4: 1.0}, (4, 4): {4: 1.0}, (4, 4, 4): {4: 1.0}, (4,) * 4: {EOS: 1.0}}
    short, long = math.log(0.4) / (7 / 6), math.log(0.3) / (10 / 6)
    for alpha, winner in ((0.0, (3,)), (1.0, (4,) * 4)):
        config = SearchConfig(beam_size=3, length_penalty=alpha, max_new_tokens=9)
        ((best,),) = search(ScriptModel(path), *batch([(3,)]), config, request())
        assert best.ids == winner
    assert best.score == pytest.approx(long) and long > short


def test_the_length_penalty_is_the_documented_one(translator):
    """One documented length-penalty formula, α = 0 is the raw sum"""
    for text in TEXTS:
        # A beam of one writes the same tokens under every α.
        records = {
            alpha: translator.translate(text, beam_size=1, max_new_tokens=9, length_penalty=alpha, details=True)
            for alpha in (0.0, 0.6, 1.0, 2.0)
        }
        raw = records[0.0]["score"]
        length = round(6 * raw / records[1.0]["score"] - 5)
        assert 1 <= length <= 9
        for alpha, record in records.items():
            assert record["score"] == pytest.approx(raw / ((5 + length) / 6) ** alpha)
        (scored,) = translator.score([(text, "the cat")], length_penalty=0.0)
        assert scored["score"] == pytest.approx(sum(token["logprob"] for token in scored["tokens"]))


def test_the_printed_score_can_be_recomputed():
    """the printed score can be recomputed"""
    model, source = TableModel(5, vocab=8), (3, 4)
    for alpha in (0.0, 1.5):
        config = SearchConfig(beam_size=4, n_best=4, length_penalty=alpha, max_new_tokens=6)
        (found,) = search(model, *batch([source]), config, request())
        for h in found:
            logprobs = teacher_forced(model, source, h.ids, h.finished)
            assert h.token_logprobs == pytest.approx(logprobs, abs=1e-5)
            assert h.score == pytest.approx(score(logprobs, alpha), abs=1e-5)


def test_ragged_prefixes_are_extended(run, model, tmp_path):
    """A forced target prefix is extended, ragged prefixes included"""
    prefixes = ["The", "", "I love natural", "爱", "  "]
    lines, forced = write(tmp_path / "in", *TEXTS[:5]), write(tmp_path / "prefix", *prefixes)
    arguments = ["translate", "-m", model, "-b", 3, "--max-new-tokens", 6, "-i", lines]
    _, out, _ = run(*arguments, "--prefix-file", forced)
    _, free, _ = run(*arguments)
    for prefix, result, unforced in zip(prefixes, out.splitlines(), free.splitlines(), strict=True):
        if prefix.strip():
            assert result.startswith(prefix) and len(result) > len(prefix)
        else:
            assert result == unforced


def test_no_repeat_ngram_looks_at_the_target_alone():
    """no repeated-n-gram scope surprises"""
    # The source holds 3 4 3 4, which the target may well say once; the prefix counts, and </s> may always come.
    script = {(): {3: 1.0}, (3,): {4: 0.9, 5: 0.1}, (3, 4): {3: 0.9, 5: 0.1}, (3, 4, 3): {4: 0.9, 5: 0.1}}
    told = request(processors=[NoRepeatNgram(2)], constraints=[Constraints((3,))])
    for beam in (1, 3):
        config = SearchConfig(beam_size=beam, max_new_tokens=8)
        ((best,),) = search(ScriptModel(script), *batch([(3, 4, 3, 4)]), config, told)
        assert best.ids == (3, 4, 3, 5) and best.finished


def test_temperature_0_is_greedy(run, model):
    """temperature 0 is greedy"""
    greedy = run("translate", "-m", model, "-b", 1, "--max-new-tokens", 8, *TEXTS)[1]
    filters = ["--top-k", 3, "--top-p", 0.1, "--seed", 4]
    assert run("translate", "-m", model, "--temperature", 0, *filters, "--max-new-tokens", 8, *TEXTS)[1] == greedy


def test_filters_keep_at_least_one_token(translator):
    """top-p keeps at least one token"""
    logits_NV = torch.randn(50, 30, dtype=torch.float64) * 3
    for keep in (TopP(1e-9), Typical(1e-9), MinP(1.0)):
        assert keep(torch.zeros(50, 0, dtype=torch.long), logits_NV).isfinite().any(1).all()
    model = TableModel(1, vocab=9)
    (greedy,) = search(model, *batch([(3, 4)]), SearchConfig(max_new_tokens=7), request())
    config = SamplingConfig(temperature=1.0, top_p=1e-9, seed=1, max_new_tokens=7)
    (sampled,) = generate(model, *batch([(3, 4)]), config, request())
    assert sampled[0].ids == greedy[0].ids, "the nucleus of almost nothing is the likeliest token"
    assert translator.translate("篮球", top_p=1e-9, seed=1, max_new_tokens=4) == translator.translate(
        "篮球", beam_size=1, max_new_tokens=4
    )


def test_a_fully_masked_row_is_finite_forward_and_backward():
    """A fully masked row gives finite values forward and backward on every path"""
    model = build_model(configure("transformer-tiny", vocab_size=20, max_len=16))
    source_BS, target_BT = torch.randint(3, 20, (2, 5)), torch.randint(3, 20, (2, 4))
    mask_BS = torch.tensor([[True] * 5, [False] * 5])
    for recorded in (False, True):
        model.zero_grad()
        if recorded:
            with gf.record(model):
                logits = model(source_BS, target_BT, mask_BS)
        else:
            logits = model(source_BS, target_BT, mask_BS)
        logits.square().mean().backward()
        assert logits.isfinite().all()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    with torch.no_grad():
        state = model.eval().start(source_BS, mask_BS)
        assert model.step(target_BT[:, :1], state).isfinite().all()


def test_masks_are_combined_as_booleans():
    """masks are combined as booleans"""
    causal_TS, mask_BS = masks.causal(4, 4), torch.tensor([[True, True, True, False], [False, True, True, True]])
    both = masks.combine(causal_TS, None, masks.padding(mask_BS))
    assert both.dtype == torch.bool
    for b in range(2):
        for t in range(4):
            for s in range(4):
                assert bool(both[b, 0, t, s]) == (s <= t and bool(mask_BS[b, s]))
    assert masks.combine(None, None) is None


class Softmaxes(TorchDispatchMode):
    """Notes the dtype in which each softmax over scores is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "softmax" in str(function) or "scaled_dot_product" in str(function):
            self.dtypes.append(args[0].dtype)
        return function(*args, **(kwargs or {}))


def test_softmax_is_computed_in_fp32_under_fp16():
    """softmax in fp32 under fp16"""
    q, k, v = (torch.randn(2, 2, 5, 8, dtype=torch.float16) for _ in range(3))
    for path in ("explicit", "fused"):
        with Softmaxes() as seen:
            assert attend(q, k, v, path=path).dtype == torch.float16
        assert seen.dtypes and set(seen.dtypes) == {torch.float32}


def test_left_padding_does_not_move_positions(translator):
    """Left padding does not move positions"""
    model = translator.model
    source_BS, target_BT = pieces_of(translator, 2, 4)
    padded_BS = torch.cat([torch.full((2, 3), PAD), source_BS], 1)
    mask_BS = padded_BS != PAD
    with torch.no_grad():
        torch.testing.assert_close(
            model(padded_BS, target_BT, mask_BS), model(source_BS, target_BT), rtol=1e-5, atol=1e-4
        )


def test_training_keeps_to_the_positions_of_the_model(translator):
    """The limit of a position table is checked first and stated: in training"""
    assert longest_example(translator.model.config, 500) == POSITIONS
    assert longest_example(translator.model.config, 20) == 20
    source_BS, target_BT = pieces_of(translator, 1, POSITIONS + 1)
    with pytest.raises(UserError, match=rf"{POSITIONS + 1} tokens .* the model's {POSITIONS} positions"):
        translator.model(source_BS, target_BT)


def test_decoding_states_the_limit_of_positions(translator, caplog):
    """The limit of a position table is checked first and stated: in decoding"""
    long = "我爱打篮球" * 30
    for pair in ((long, "x"), ("x", long)):
        with pytest.raises(UserError, match=rf"more than the model's {POSITIONS} tokens"):
            translator.score([pair])
    record = translator.translate(long, split_above=None, max_new_tokens=500, beam_size=1, details=True)
    assert record["truncated"] and f"the model's limit of {POSITIONS} tokens" in caplog.text
    with pytest.raises(UserError, match=rf"prefix of \d+ tokens leaves no room under .* limit of {POSITIONS} tokens"):
        translator.translate("x", prefix=long)


def test_padding_and_start_are_never_produced(run, model):
    """pad and `<s>` are never produced"""
    script = ScriptModel({(): {PAD: 0.5, BOS: 0.3, 3: 0.1, EOS: 0.1}, (3,): {PAD: 0.6, EOS: 0.4}})
    for beam in (1, 4):
        (found,) = search(script, *batch([(3,)]), SearchConfig(beam_size=beam, n_best=beam), request())
        assert found and not any({PAD, BOS} & {*h.ids} for h in found)
    config = SamplingConfig(samples=50, seed=1)
    (drawn,) = generate(script, *batch([(3,)]), config, request())
    assert not any({PAD, BOS} & {*h.ids} for h in drawn)
    _, out, _ = run("translate", "-m", model, "--temperature", 5, "--seed", 1, *TEXTS)
    assert not any(special in out for special in ("<pad>", "<s>", "</s>", "<unk>", "<2en>", "<2zh>"))


def test_rows_of_a_padded_vocabulary_are_masked(translator):
    """padded vocabulary rows are masked"""
    size = translator.tokenizer.vocab_size
    spare = range(size, translator.model.config.target_vocab_size)
    assert len(spare) == 4 and set(spare) <= set(translator.request((), ()).banned_ids)
    # At this temperature every row is about equally likely, and an id outside the vocabulary cannot be decoded.
    translator.translate(TEXTS * 5, temperature=100.0, seed=2, max_new_tokens=20)


def test_loops_are_retried_and_flagged():
    """Loops are detected, retried, and flagged in the output"""
    loop = "the cat the cat the cat the cat the cat"

    def of(first: str, second: str):
        asked = []

        def again(parts):
            asked.extend(part.source for part in parts)
            return [second for _ in parts]

        lines = translate_text(["我爱猫", "ok"], lambda parts: [first, "fine"][: len(parts)], retry_batch=again)
        return [(line.translation, line.repetition) for line in lines], asked

    assert of(loop, "the cat") == ([("the cat", False), ("fine", False)], ["我爱猫"])
    assert of(loop, loop) == ([(loop, True), ("fine", False)], ["我爱猫"])
    assert of("the cat", "never asked") == ([("the cat", False), ("fine", False)], [])


def test_answers_that_are_no_translation_are_flagged():
    """Hallucinations that are the source again or nothing are flagged in the output"""
    answers = iter([["我爱我的猫", "", "I love my cat"]])
    lines = list(translate_text(["我爱我的猫"] * 3, lambda parts: next(answers)))
    assert [line.untranslated for line in lines] == [True, True, False]
    assert lines[1].translation == "我爱我的猫", "nothing is lost"


def test_alignments_are_pairs_of_words(run, model):
    """Real word alignments (Pharaoh) on request"""
    code, out, _ = run("translate", "-m", model, "--format", "jsonl", "--alignments", *TEXTS[:3])
    assert code == 0
    for record in map(json.loads, out.splitlines()):
        links = [tuple(map(int, link.split("-"))) for link in record["alignment"].split()]
        assert links == sorted(links)
        counts = [len(gf.text.words.words(record[side])) for side in ("source", "translation")]
        assert links and all(s < counts[0] and t < counts[1] for s, t in links)
    plain = json.loads(run("translate", "-m", model, "--format", "jsonl", TEXTS[0])[1])
    assert plain["alignment"] is None


def test_the_layer_and_the_heads_of_an_alignment_can_be_chosen(run, model, translator):
    """layer and heads can be chosen"""
    text = "I love natural language processing. The cat sat on the mat."
    found = set()
    for layer in (0, 1):
        for head in (0, 1):
            flags = ["--alignment-layers", layer, "--alignment-heads", head, "--engine", "model"]
            record = json.loads(run("translate", "-m", model, "--format", "jsonl", "--alignments", *flags, text)[1])
            api = translator.translate(
                text, alignments=True, alignment_layers=[layer], alignment_heads=[head], details=True
            )
            assert api["alignment"] == record["alignment"]
            found.add(record["alignment"])
    assert len(found) > 1
    code, _, err = run("translate", "-m", model, "--format", "jsonl", "--alignments", "--alignment-layers", 9, text)
    assert code == 2 and "9" in err
