"""The engine of packed PyTorch weights: whatever is asked of it, it answers as the module does."""

import random

import pytest
import torch
from torch.testing import assert_close

from glassformer.api import load
from glassformer.config import ModelConfig
from glassformer.engines import products
from glassformer.engines import torch as fast
from glassformer.engines.engine import Unavailable
from glassformer.engines.model import ModelEngine
from glassformer.engines.products import build_product
from glassformer.engines.torch import FAITHFUL, FastSeq2Seq, TorchEngine
from glassformer.errors import UserError
from glassformer.families import configure
from glassformer.generate import Request, SamplingConfig
from glassformer.generate.opening import normaliser
from glassformer.header import Translation
from glassformer.models.build import build_model
from glassformer.store import save_model
from glassformer.text.tokenizer import Tokenizer

LINES = ["我爱自然语言处理。", "我喜欢打篮球。", "I love natural language processing.", "The cat sat on the mat."] * 4
TEXTS = ["我爱打篮球。", "", "The cat", "I love the cat on the mat.", "<b>我</b>爱 {name}。", "我"]


def stack(decoder, heads=(2, 4), norm="layer", ffn="relu", **options):
    attention = {"d_head": options.pop("d_head", None), "scale": options.pop("scale", None)}
    attention |= {"bias": options.pop("bias", True), "out_bias": options.pop("out_bias", None)}
    blocks = [
        {
            "mixer": {"n_heads": n, "causal": decoder, **attention},
            "cross": {"n_heads": heads[0], **attention} if decoder else None,
            "ffn": {"d_ff": 24, "activation": ffn} if ffn else None,
            "norm": {"type": norm},
            "order": options.get("order", "post"),
        }
        for n in heads
    ]
    extra = {key: options[key] for key in ("position", "input_norm", "final_norm") if key in options}
    return {"position": {"type": "sinusoidal", "max_len": 64}, "blocks": blocks, **extra}


def module_of(encoder=None, decoder=None, **options):
    """A random module; norms and biases are random, too."""
    data = {"d_model": 16, "embed": {"vocab_size": 37}, "encoder": stack(False, **encoder or {})}
    data |= {"decoder": stack(True, **decoder or {}), **options}
    module = build_model(ModelConfig.from_dict(data)).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.2
    return module


LEARNED = {"type": "learned", "max_len": 64}
MODELS = [
    {},
    {"decoder": {"order": "pre", "final_norm": {}, "norm": "rms"}, "encoder": {"order": "pre", "ffn": "gelu"}},
    {"decoder": {"d_head": 3, "bias": False, "out_bias": True, "scale": 0.7, "ffn": "gelu-tanh"}, "tie": False},
    {"encoder": {"position": LEARNED, "input_norm": {}}, "decoder": {"position": None, "ffn": None, "heads": (4, 1)}},
    {"target_embed": {"vocab_size": 53, "scale": False}, "head": {"bias": True, "scale": True}},
]


@pytest.mark.parametrize("options", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_any_walk_of_steps_selections_and_truncations_gives_the_modules_logits(options, seed):
    module, rng = module_of(**options), random.Random(seed)
    decodable = FastSeq2Seq(module, "fp32")
    source_BS = torch.tensor([rng.choices(range(37), k=7) for _ in range(4)])
    mask_BS = torch.arange(7) < torch.tensor([[7], [3], [0], [5]]) if seed else None  # the third has no token at all
    states = [model.start(source_BS, mask_BS) for model in (module, decodable)]
    rows = 4
    with torch.no_grad():
        for _ in range(24):
            action = rng.choice(["step", "step", "step", "read", "select", "expand", "truncate"])
            length = states[0].length
            if action == "select":  # some sentences leave, others have several rows, in any order
                index_N = torch.tensor(rng.choices(range(rows), k=rng.randint(1, 9)))
            elif action == "expand":
                index_N = torch.arange(rows).repeat_interleave(rng.randint(1, 3))[:24]
            if action in ("select", "expand"):
                rows = len(index_N)
                for state in states:
                    state.select(index_N)
            elif action == "truncate":
                kept = rng.randint(0, length)
                for state in states:
                    state.truncate(kept)
            elif length < 40:
                new = 1 if action == "step" else rng.randint(1, 12)
                tokens_NT = torch.tensor([rng.choices(range(37), k=new) for _ in range(rows)])
                wanted, found = (
                    model.step(tokens_NT, state, last_only=action == "step")
                    for model, state in zip((module, decodable), states, strict=True)
                )
                assert_close(found, wanted, atol=1e-4, rtol=1e-4)
            assert states[0].length == states[1].length
    with pytest.raises(ValueError):
        states[1].truncate(states[1].length + 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A MODEL directory of random weights."""
    tokenizer = Tokenizer.train(LINES, vocab_size=330, languages=("zh", "en"))
    torch.manual_seed(7)
    module = build_model(configure("transformer-tiny", vocab_size=tokenizer.vocab_size + 5, max_len=64))
    with torch.no_grad():
        module.embed.weight.mul_(4)  # far from uniform, so that one hypothesis differs from another
    path = tmp_path_factory.mktemp("model") / "zh-en"
    save_model(path, module, tokenizer, Translation(source="zh", target="en", both_directions=True))
    return path


@pytest.fixture(scope="module")
def pair(model):
    return load(model, device="cpu", engine="model"), load(model, device="cpu", engine="torch")


OPTIONS = [
    {"beam_size": 1},
    {"beam_size": 4, "n_best": 3, "length_penalty": 0.3},
    {"beam_size": 4, "beam_groups": 2, "diversity": 1.0},
    {"temperature": 1.3, "top_k": 40, "seed": 5},
    {"repetition_penalty": 1.5},
    {"no_repeat_ngram": 1},
    {"banned": ["love"]},
    {"glossary": {"猫": "dog", "cat": "狗", "我": "me"}},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("prefix", [None, ["The", "", "猫", "", "a", "x"]])
def test_an_option_means_the_same_as_in_the_module(pair, options, prefix):
    wanted, found = (t.translate(TEXTS, prefix=prefix, max_new_tokens=8, details=True, **options) for t in pair)
    for mine, its in zip(wanted, found, strict=True):
        assert [c["translation"] for c in mine["n_best"]] == [c["translation"] for c in its["n_best"]]
        assert [c["score"] for c in mine["n_best"]] == pytest.approx([c["score"] for c in its["n_best"]], abs=1e-4)


def test_scores_events_and_alignments_are_the_modules(pair):
    pairs = [("我爱打篮球。", "I love the cat."), ("The cat", "猫"), ("我", "")]
    for mine, its in zip(*(t.score(pairs) for t in pair), strict=True):
        assert [t["logprob"] for t in mine["tokens"]] == pytest.approx([t["logprob"] for t in its["tokens"]], abs=1e-4)
    config, sources = SamplingConfig(temperature=1.0, seed=3, max_new_tokens=6), [[5, 9, 2], [6, 300, 301, 2]]
    told = [[repr(e).partition("logprob")[0] for e in t.engine.stream(sources, config, Request(1, 2))] for t in pair]
    assert told[0] == told[1] and len(told[0]) > 8
    aligned = [t.translate("我爱打篮球。", max_new_tokens=5, alignments=True, details=True) for t in pair]
    assert aligned[0]["alignment"] == aligned[1]["alignment"]


def test_logits_carry_no_gradient_and_may_be_changed(pair):
    decodable = pair[1].engine.decodable
    logits_BV = decodable.step(torch.tensor([[1]]), decodable.start(torch.tensor([[5, 2]])))
    assert not logits_BV.requires_grad
    logits_BV[0, 0] = -1.0


def products_of(rows, precision, relu=False, wide=False):
    """What a product says of random rows, what it should say, and by how much it may differ."""
    generator = torch.Generator().manual_seed(rows)
    n, k = (700, 800) if wide else (33, 40)  # oneDNN multiplies the wide one, also in float32
    x_MK, weight_NK = (torch.randn(*shape, generator=generator) for shape in ((rows, k), (n, k)))
    x_MK *= torch.logspace(-3, 3, rows)[:, None]
    bias_N = torch.randn(n, generator=generator) * 1e-3
    wanted_MN = x_MK.double() @ weight_NK.double().T + bias_N.double()
    step = {"fp32": 1e-6, "bf16": 2**-8, "int8": 0.505 / 127}[precision]
    allowed_MN = step * (x_MK.abs().amax(1, True) * weight_NK.abs().sum(1) + bias_N.abs()).double()
    if precision == "int8":
        allowed_MN += step * x_MK.abs().sum(1, True) * weight_NK.abs().amax(1)
    found_MN = build_product(precision, weight_NK, bias_N)(x_MK, relu=relu)
    return found_MN.double(), wanted_MN.relu() if relu else wanted_MN, allowed_MN


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_a_product_errs_in_each_row_by_that_rows_own_rounding(precision, rows, relu, wide):
    if precision == "int8" and not products._multiplies_int8():
        with pytest.raises(Unavailable):
            products_of(rows, precision)
        return
    found_MN, wanted_MN, allowed_MN = products_of(rows, precision, relu, wide)
    assert ((found_MN - wanted_MN).abs() <= allowed_MN).all()


def test_int8_rounds_to_the_nearest_and_keeps_a_nan_in_its_row_and_zeros_at_the_bias():
    if not products._multiplies_int8():
        return
    values_MK = torch.randn(5, 32)
    kept_MK = build_product("int8", torch.eye(32), None)(values_MK)
    assert ((kept_MK - values_MK).abs() <= 0.501 / 127 * values_MK.abs().amax(1, True)).all()  # to the nearest
    product = build_product("int8", torch.randn(8, 16), torch.arange(8.0))
    x_MK = torch.randn(4, 16)
    alone_MN = product(x_MK)
    x_MK[1, 3], x_MK[2] = torch.nan, 0.0
    found_MN = product(x_MK)
    assert found_MN[1].isnan().all() and torch.equal(found_MN[2], torch.arange(8.0))
    assert torch.equal(found_MN[[0, 3]], alone_MN[[0, 3]])


def absent(*args, **named):
    raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")


@pytest.fixture
def fresh():
    """What was found out of PyTorch's private calls is forgotten, before and after."""
    for known in (products._packs, products._multiplies_int8):
        known.cache_clear()
    yield
    for known in (products._packs, products._multiplies_int8):
        known.cache_clear()


@pytest.mark.parametrize("broken", [absent, lambda *args, **named: torch.zeros(5, 48)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_private_call_that_is_missing_or_wrong_is_left_out(fresh, monkeypatch, broken, precision):
    monkeypatch.setattr(products, "_multiply", broken)
    for relu in (False, True):
        found_MN, wanted_MN, allowed_MN = products_of(3, precision, relu, wide=True)
        assert ((found_MN - wanted_MN).abs() <= allowed_MN).all()


def test_int8_is_refused_by_name_where_it_is_absent_inexact_or_unfaithful(fresh, monkeypatch, model):
    with monkeypatch.context() as patch:
        patch.setattr(products, "_multiply_int8", absent)
        with pytest.raises(UserError, match="^--engine torch: this PyTorch has no exact int8 product"):
            load(model, device="cpu", engine="torch", precision="int8")
    products._multiplies_int8.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(products, "_multiply_int8", lambda *args, **named: torch.zeros(3, 32))
        assert not products._multiplies_int8()
    products._multiplies_int8.cache_clear()
    if products._multiplies_int8():
        engine = load(model, device="cpu", engine="torch", precision="int8").engine
        assert engine.precision == "int8" and fast._cosine(engine.module, engine.decodable) >= FAITHFUL
        monkeypatch.setattr(fast, "FAITHFUL", 1.1)
        with pytest.raises(UserError, match="^--engine torch: int8 logits would be only 0.99"):
            load(model, device="cpu", engine="torch", precision="int8")


def test_bf16_stays_close(pair):
    module = pair[0].engine.module
    assert 0.99 < fast._cosine(module, TorchEngine(module, "bf16").decodable) < 0.9999999
    assert fast._cosine(module, TorchEngine(module).decodable) > 0.999999


@pytest.mark.parametrize("floor", [-10.0, -1e4, -1e9, -torch.inf])
@pytest.mark.parametrize("low", [0, 1, 64, 99, 100])
def test_the_normaliser_is_the_log_of_the_sum(floor, low):
    logits_NV = torch.randn(5, 100, generator=torch.Generator().manual_seed(low)) * 6
    logits_NV[1:4, :low] = floor
    best_N1 = logits_NV.double().amax(1, keepdim=True).clamp(min=-1e30)  # or the exponentials vanish
    wanted_N1 = (logits_NV.double() - best_N1).exp().sum(1, keepdim=True).log() + best_N1
    assert_close(normaliser(logits_NV), wanted_N1.float(), atol=1e-5, rtol=1e-6)


MIXER = {"n_heads": 2, "causal": True}
PARTS = [
    ("Attention.window", {"mixer": {**MIXER, "window": 4}}),
    ("Attention.n_kv_heads", {"mixer": {**MIXER, "n_kv_heads": 1}}),
    ("Attention.rotary", {"mixer": {**MIXER, "rotary": {}}}),
    ("GatedMLP", {"ffn": {"type": "gated", "d_ff": 8}}),
]


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_part_that_it_does_not_know_is_named(name, part):
    data = {"d_model": 16, "embed": {"vocab_size": 37}, "encoder": stack(False), "decoder": stack(True)}
    data["decoder"]["blocks"][1] |= part
    module = build_model(ModelConfig.from_dict(data))
    with pytest.raises(Unavailable, match=f"^it does not know {name}$"):
        TorchEngine(module)
    assert ModelEngine(module).name == "model"
