"""T5, BART and Marian beside `transformers`: every variant, both ways; goldens; text with their own tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

import glassformer as gf
from glassformer.decoding import Decoding
from glassformer.errors import UserError
from glassformer.families import family_of
from glassformer.generate.constraints import Constraints
from glassformer.interop import hf
from tests.randomised import ids, lengths_mask, randomise

transformers.logging.set_verbosity_error()

VOCAB, TARGET_VOCAB, LENGTHS = 37, 29, [9, 6, 2]
ACTIVATIONS = ["gelu", "relu", "gelu_new", "silu"]


def drawn(model: Any, seed: int) -> Any:
    """The model with everything random but Marian's sinusoids, which theirs keeps among the parameters."""
    fixed = [
        (p, p.clone()) for name, p in model.named_parameters() if "embed_positions" in name and not p.requires_grad
    ]
    randomise(model, seed)
    with torch.no_grad():
        for parameter, value in fixed:
            parameter.copy_(value)
    return model.eval()


@st.composite
def theirs(draw: st.DrawFn) -> Any:
    """A model of theirs, whose every parameter and buffer is random."""
    n_heads, d_head = draw(st.sampled_from([(1, 4), (2, 4), (3, 2)]))
    layers, own_layers = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    d_ff = draw(st.sampled_from([5, 8]))
    kind, tie = draw(st.sampled_from(["t5", "bart", "marian"])), draw(st.booleans())
    special = dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    if kind == "t5":
        config = transformers.T5Config(
            vocab_size=VOCAB,
            d_model=8,
            d_kv=d_head,
            d_ff=d_ff,
            num_heads=n_heads,
            num_layers=layers,
            num_decoder_layers=own_layers,
            relative_attention_num_buckets=draw(st.sampled_from([4, 8])),
            relative_attention_max_distance=draw(st.sampled_from([5, 20])),
            layer_norm_epsilon=draw(st.sampled_from([1e-6, 1e-2])),
            feed_forward_proj=draw(st.sampled_from(["relu", "gated-gelu", "gated-silu", "gelu"])),
            tie_word_embeddings=tie,
            **special,
        )
        name = draw(st.sampled_from(["T5ForConditionalGeneration", "T5Model"]))
    else:
        sizes = dict(
            vocab_size=VOCAB,
            d_model=n_heads * d_head,
            encoder_layers=layers,
            decoder_layers=own_layers,
            encoder_attention_heads=n_heads,
            decoder_attention_heads=draw(st.sampled_from([1, n_heads])),
            encoder_ffn_dim=d_ff,
            decoder_ffn_dim=d_ff + 1,
            max_position_embeddings=draw(st.integers(13, 20)),
            activation_function=draw(st.sampled_from(ACTIVATIONS)),
            scale_embedding=draw(st.booleans()),
            **special,
        )
        if kind == "bart":
            heads = ["ForConditionalGeneration", "Model", "ForSequenceClassification", "ForQuestionAnswering"]
            name = "Bart" + draw(st.sampled_from(heads))
            config = transformers.BartConfig(**sizes, num_labels=draw(st.integers(1, 4)))
        else:
            name = draw(st.sampled_from(["MarianMTModel", "MarianModel"]))
            shared = draw(st.booleans())
            target = {} if shared else {"decoder_vocab_size": TARGET_VOCAB}
            config = transformers.MarianConfig(**sizes, **target, share_encoder_decoder_embeddings=shared)
    model = drawn(getattr(transformers, name)(config), draw(st.integers(0, 10**6)))
    if "final_logits_bias" in dict(model.named_buffers()):
        torch.nn.init.normal_(model.final_logits_bias)
    return model


@torch.no_grad()
def same(ours: Any, model: Any, seed: int) -> None:
    source, mask = ids(VOCAB, 3, max(LENGTHS), seed=seed), lengths_mask(LENGTHS)
    target = ids(TARGET_VOCAB, 3, 7, seed=seed + 1)
    if type(model).__name__ == "BartForSequenceClassification":
        # It reads the source once more as its target, shifted, and classifies where the one </s> of a row stands.
        source[source == 1] = 2
        source[range(3), [length - 1 for length in LENGTHS]] = 1
        expected = model(input_ids=source, attention_mask=mask.long()).logits
        start = torch.full((3, 1), model.config.decoder_start_token_id)
        out = ours(source, torch.cat([start, source[:, :-1]], 1), mask, mask)
    else:
        told = model(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target)
        expected = told.logits if "logits" in told else told.get("last_hidden_state")
        if "start_logits" in told:
            expected = torch.stack([told.start_logits, told.end_logits], -1)
        out = ours(source, target, mask)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@settings(max_examples=12)
@given(theirs(), st.integers(0, 10**6))
def test_any_model_of_theirs_comes_in_and_goes_out_with_equal_outputs(tmp_path_factory, model, seed):
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder / "in")
    loaded = gf.load(folder / "in")
    same(loaded.model, model, seed)
    hf.save(folder / "out", loaded.model, None, loaded.framing)
    again, told = type(model).from_pretrained(folder / "out", output_loading_info=True)
    # The sinusoids of a Marian without a head are missed, and computed.
    assert all("embed_positions" in name for name in told["missing_keys"])
    assert not told["unexpected_keys"] and not told["mismatched_keys"]
    same(loaded.model, again.eval(), seed + 1)


@pytest.mark.parametrize("name", ["t5", "t5-v1_1", "bart", "marian"])
@torch.no_grad()
def test_the_golden_logits_are_reproduced(shared: Path, name: str) -> None:
    folder = shared / "data/checkpoints/hf-tiny-random" / name
    told = json.loads((folder / "golden.json").read_text())
    inputs = {key: torch.tensor(value) for key, value in told["inputs"].items()}
    logits = gf.load(folder).model(inputs["input_ids"], inputs["decoder_input_ids"], inputs["attention_mask"].bool())
    torch.testing.assert_close(logits, torch.tensor(told["logits"]), rtol=0, atol=told["tolerance"])


# The t5 and bart figures are those of the released checkpoints; Marian's is opus-mt-en-de's 74,410,496 without its two
# tables of fixed sinusoids, which are no parameters, and with the bias of its output, which the published count omits.
PUBLISHED = {
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-v1_1-base": 247_577_856,
    "bart-base": 139_420_416,
    "bart-large": 406_291_456,
    "marian-base": 74_410_496 - 2 * 512 * 512 + 58_101,
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(preset: str) -> None:
    assert gf.build(preset, "meta").num_parameters() == PUBLISHED[preset]


@pytest.mark.parametrize(
    ("kind", "change", "named"),
    [
        ("t5", {"feed_forward_proj": "gated-swoosh"}, "feed_forward_proj"),
        ("t5", {"is_decoder": True}, "is_decoder"),
        ("t5", {"architectures": ["T5EncoderModel"]}, "T5EncoderModel"),
        ("t5", {"relative_attention_scheme": "new"}, "relative_attention_scheme"),
        ("bart", {"normalize_before": True}, "normalize_before"),
        ("bart", {"static_position_embeddings": True}, "static_position_embeddings"),
        ("bart", {"activation_function": "mish"}, "activation_function"),
        ("marian", {"normalize_embedding": True}, "normalize_embedding"),
        ("marian", {"decoder_vocab_size": 11}, "decoder_vocab_size"),
        ("marian", {"sharing": 2}, "sharing"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(kind: str, change: dict[str, Any], named: str) -> None:
    family = family_of(kind)
    assert family is not None and family.from_hf is not None and family.to_hf is not None
    data = family.to_hf(
        gf.build(f"{kind}-tiny", "meta").config if kind != "marian" else family.from_hf({"vocab_size": 9})
    )
    family.from_hf(data)
    with pytest.raises(UserError, match=named):
        family.from_hf({**data, **change})


@pytest.mark.parametrize("kind", ["t5", "bart", "marian"])
def test_a_model_of_another_shape_has_no_such_form(kind: str) -> None:
    family = family_of(kind)
    assert family is not None and family.to_hf is not None
    for preset in ("transformer-tiny", *(f"{other}-tiny" for other in ("t5", "bart") if other != kind)):
        with pytest.raises(UserError, match="cannot represent this model"):
            family.to_hf(gf.build(preset, "meta").config)


TEXTS = ["the cat sat on the mat", "a dog and a cat", "the mat is on the dog", "cats sit, dogs run", "on and on it ran"]


def pieces(path: Path, texts: list[str], **options: Any) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 20),
        model_prefix=str(path),
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )


def marian_tokenizer(folder: Path) -> Any:
    """Two SentencePiece models and one vocabulary in an order of its own, without one of their pieces."""
    for side, texts in (("source", TEXTS), ("target", [text[::-1] for text in TEXTS])):
        pieces(folder / side, texts)
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
    both = {
        processor.IdToPiece(index)
        for side in ("source", "target")
        for processor in [sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))]
        for index in range(3, processor.GetPieceSize())
    }
    names = ["</s>", "<unk>", *sorted(both - {"m"}, reverse=True), ">>fra<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: index for index, name in enumerate(names)}))
    (folder / "tokenizer_config.json").write_text("{}")
    return transformers.MarianTokenizer.from_pretrained(folder), len(names)


def answers(model: Any, tokenizer: Any, texts: list[str], new: int = 12, **options: Any) -> list[str]:
    """Their greedy answers, one text at a time: padding would change nothing but the last digits."""
    found = []
    for text in texts:
        encoded = tokenizer(text, return_tensors="pt")
        given = {key: encoded[key] for key in ("input_ids", "attention_mask")}
        out = model.generate(**given, num_beams=1, do_sample=False, max_new_tokens=new, **options)
        found.append(tokenizer.decode(out[0], skip_special_tokens=True))
    return found


def ours_of(folder: Path, texts: list[str]) -> list[str]:
    translator = gf.load(folder)
    assert all(isinstance(text, str) for text in translator.translate(texts, beam_size=1, max_new_tokens=12))
    # Below what mends the answers of a model that knows no language: blank ones, and those that repeat themselves.
    constraints = [Constraints(translator.framing.forced)] * len(texts)
    rows, decoding = [translator.read(text, None) for text in texts], Decoding(beam_size=1, max_new_tokens=12)
    found = translator.decode(rows, decoding, (), constraints, 4000)
    return [translator.tokenizer.target.decode(hypotheses[0].ids) for hypotheses in found]


def test_a_marian_translates_with_its_two_tokenizers_as_theirs_does(tmp_path: Path) -> None:
    tokenizer, size = marian_tokenizer(tmp_path)
    config = transformers.MarianConfig(
        vocab_size=size,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=32,
        pad_token_id=size - 1,
        eos_token_id=0,
        decoder_start_token_id=size - 1,
        scale_embedding=True,
        bad_words_ids=[[size - 1]],
        forced_eos_token_id=None,
    )
    model = drawn(transformers.MarianMTModel(config), 3)
    model.final_logits_bias[0, -1] = 50.0  # padding would win every step, but is never written
    model.save_pretrained(tmp_path)
    translator = gf.load(tmp_path)
    texts = [*TEXTS, ">>fra<< the cat", "unknown § signs"]
    assert [[*translator.tokenizer.encode(text), 0] for text in texts] == [
        tokenizer(text)["input_ids"] for text in texts
    ]
    assert ours_of(tmp_path, TEXTS) == answers(
        model, tokenizer, TEXTS, bad_words_ids=[[size - 1]], no_repeat_ngram_size=0
    )
    gf.convert(tmp_path, tmp_path / "ours")
    assert ours_of(tmp_path / "ours", TEXTS) == ours_of(tmp_path, TEXTS)
    assert gf.load(tmp_path / "ours").tokenizer.target.decode([2, 3]) == translator.tokenizer.target.decode([2, 3])
    (tmp_path / "ours" / "target.spm").write_bytes((tmp_path / "source.spm").read_bytes())
    with pytest.raises(UserError, match="not the one this model was trained with"):
        gf.load(tmp_path / "ours")


def test_a_bart_reads_and_writes_as_its_tokenizer_and_its_config_say(tmp_path: Path) -> None:
    names = ["<s>", "<pad>", "</s>", "<unk>", *sorted({word for text in TEXTS for word in text.split()})]
    backend = tokenizers.Tokenizer(
        models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<unk>")
    )
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    backend.add_special_tokens(names[:4])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", pad_token="<pad>", bos_token="<s>"
    )
    config = transformers.BartConfig(
        vocab_size=len(names),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=32,
        forced_bos_token_id=0,
        forced_eos_token_id=None,
    )
    model = randomise(transformers.BartForConditionalGeneration(config), 5).eval()
    model.generation_config.forced_bos_token_id = 0
    model.final_logits_bias[0, :4] = -20.0  # not to end at once
    model.save_pretrained(tmp_path)
    translator = gf.load(tmp_path)
    assert (translator.framing.before, translator.framing.after, translator.framing.start) == ((0,), (2,), 2)
    assert translator.framing.forced == (0,)
    expected = answers(model, tokenizer, TEXTS, new=13, bad_words_ids=[[1]])  # theirs counts the forced <s>
    assert ours_of(tmp_path, TEXTS) == expected and len(set(expected)) > 1


def test_a_t5_starts_with_padding_and_has_no_limit(tmp_path: Path) -> None:
    pieces(tmp_path / "spiece", TEXTS, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    config = transformers.T5Config(
        vocab_size=processor.GetPieceSize() + 5,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_heads=2,
        num_layers=1,
        decoder_start_token_id=0,
    )
    model = randomise(transformers.T5ForConditionalGeneration(config), 2).eval()
    model.save_pretrained(tmp_path)
    translator = gf.load(tmp_path)
    assert translator.framing.start == 0 and translator.framing.after == (1,) and translator.source_limit is None
    size, found = processor.GetPieceSize(), []
    for text in TEXTS:
        source = torch.tensor([[*processor.EncodeAsIds(text), 1]])
        banned = [[index] for index in (0, *range(size, size + 5))]  # rows without a piece are nobody's
        out = model.generate(input_ids=source, num_beams=1, do_sample=False, max_new_tokens=12, bad_words_ids=banned)
        found.append(processor.DecodeIds([index for index in out[0].tolist() if index > 2]))
    assert ours_of(tmp_path, TEXTS) == found and len(set(found)) > 1
