"""The teaching example: every number that the teaching material prints, from the project's own layers."""

import json
import math

import pytest
import torch
from torch import Tensor

from glassformer.config import (
    AttentionConfig,
    BlockConfig,
    EmbedConfig,
    HeadConfig,
    LayerNormConfig,
    LearnedPositionConfig,
    MLPConfig,
    SinusoidalConfig,
    StackConfig,
)
from glassformer.data.collate import collate, pad
from glassformer.families import build, configure, presets
from glassformer.models.stack import Stack
from glassformer.nn import mask as masks
from glassformer.nn.attend import attend
from glassformer.nn.attention import CrossAttention
from glassformer.nn.embed import OutputHead, TokenEmbedding
from glassformer.nn.mixer import Context
from glassformer.nn.norm import build_norm
from glassformer.nn.position import PositionTable, sinusoids
from glassformer.trace.recorder import record
from tests.randomised import close, ids, randomise


@pytest.fixture
def golden(shared) -> dict:
    return json.loads((shared / "goldens/worked_examples.json").read_text(encoding="utf-8"))


def near(actual: Tensor, expected: object, tolerance: float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=tolerance)


def look(scores: list[float], **options: object) -> tuple[Tensor, Tensor]:
    """Attention whose scores are the given ones: with heads of size 1, the query 1 and the scores as keys."""
    seen: dict[str, Tensor] = {}
    keys = torch.tensor(scores).view(1, 1, -1, 1)
    queries = torch.ones(1, 1, len(scores) if options.get("causal") else 1, 1)

    def see(name: str):
        def keep(value: Tensor) -> Tensor:
            seen[name] = value[0, 0]
            return value

        return keep

    attend(queries, keys, keys, path="explicit", see_scores=see("scores"), see_pattern=see("pattern"), **options)
    return seen["scores"], seen["pattern"]


def test_the_teaching_model_is_one_head_of_four_numbers_six_layers_deep() -> None:
    config = configure("transformer-teaching")
    blocks = [*config.encoder.blocks, *config.decoder.blocks]
    assert config.d_model == 4 and len(config.encoder.blocks) == len(config.decoder.blocks) == 6
    assert {block.mixer.n_heads for block in blocks} == {1}


def test_positions(golden) -> None:
    told = golden["sinusoidal_positions"]
    places = torch.tensor(told["positions"])
    near(sinusoids(places, told["d_model"]), told["values"], told["tolerance"])
    table = PositionTable(SinusoidalConfig(first=1, max_len=5), told["d_model"])
    near(table(5), told["values"], told["tolerance"])
    near(table(2, start=3), told["values"][3:], told["tolerance"])
    halves = sinusoids(places, 4, layout="halves")
    near(halves[:, [0, 2, 1, 3]], told["values"], told["tolerance"])
    # Position 1 turns each pair by its own frequency.
    first = sinusoids(torch.tensor([1]), 4)[0]
    near(torch.atan2(first[::2], first[1::2]), told["frequencies"], 1e-6)


@pytest.mark.parametrize("shift", [1, 3, 17])
def test_a_shift_of_position_is_one_rotation_whatever_the_position(golden, shift: int) -> None:
    frequencies = golden["sinusoidal_positions"]["frequencies"]
    rotation = torch.zeros(4, 4)
    for pair, frequency in enumerate(frequencies):
        sine, cosine = math.sin(shift * frequency), math.cos(shift * frequency)
        rotation[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = torch.tensor([[cosine, sine], [-sine, cosine]])
    places = torch.arange(0, 200, 7)
    close(sinusoids(places + shift, 4), sinusoids(places, 4) @ rotation.T, atol=1e-6)


def test_softmax_of_self_attention(golden) -> None:
    told = golden["softmax_self_attention"]
    assert len(told["tokens"]) == len(told["scores"])
    scores, pattern = look(told["scores"])
    near(scores[0], told["scores"], 1e-6)
    near(pattern[0], told["weights"], told["tolerance"])


def test_causal_mask(golden) -> None:
    told = golden["causal_mask"]
    row = told["row_I"]
    index = told["tokens"].index("I")
    scores, pattern = look(row["scores"], causal=True)
    near(scores[index], row["scores"], 1e-6)
    allowed = masks.causal(3, 3)[index]
    near(scores[index].masked_fill(~allowed, -math.inf), [float(x) for x in row["after_mask"]], 1e-6)
    near(pattern[index], row["weights"], row["tolerance"])
    assert pattern[index, 2] == 0


def test_a_single_token_sees_itself(golden) -> None:
    told = golden["causal_mask"]["single_token"]
    additive = torch.zeros(1, 1).masked_fill(~masks.causal(1, 1), -math.inf)
    assert additive.tolist() == told["mask"]
    for score in (-7.0, 0.3):
        assert look([score], causal=True)[1].tolist() == told["weights"]


def test_cross_attention_of_the_given_query_and_keys(golden) -> None:
    told = golden["cross_attention"]
    keys = list(told["keys"].values())
    layer = CrossAttention(AttentionConfig(n_heads=1, bias=False), 4)
    with torch.no_grad():
        for projection in (layer.query, layer.key, layer.value, layer.out):
            projection.weight.copy_(torch.eye(4))
    with record(layer) as trace:
        out = layer(torch.tensor([[told["query_START"]]]), Context(memory_BSD=torch.tensor([keys])))
    near(trace["scores"][0, 0, 0], told["scores"][:2], told["tolerance"])
    # Over these two keys alone the weights keep the ratio that they have among the five.
    weights = trace["pattern"][0, 0, 0]
    near(weights[:1] / weights[1:], [told["weights"][0] / told["weights"][1]], 0.006)
    close(out[0, 0], weights @ torch.tensor(keys))


def test_cross_attention_weights_of_the_five_scores(golden) -> None:
    told = golden["cross_attention"]
    scores, pattern = look(told["scores"])
    near(scores[0], told["scores"], 1e-6)
    near(pattern[0], told["weights"], told["tolerance"])


def test_layer_norm(golden) -> None:
    told = golden["layer_norm"]
    norm = build_norm(LayerNormConfig(), 4)
    for row in told["rows"].values():
        x = torch.tensor(row["x"])
        y = norm(x)
        near(y, row["y"], told["tolerance"])
        # The norm's own mean and variance, read back from x = mean + y √(variance + ε).
        deviation = (x[0] - x[1]) / (y[0] - y[1])
        near(x[0] - deviation * y[0], row["mean"], told["tolerance"])
        if "variance" in row:
            near(deviation**2, row["variance"], told["tolerance"])


def test_output_layer(golden) -> None:
    told = golden["output_layer"]
    state, logits = torch.tensor(told["decoder_state"]), torch.tensor(told["top_logits"])
    embedding = TokenEmbedding(EmbedConfig(vocab_size=5), 4)
    with torch.no_grad():
        embedding.weight.copy_(torch.outer(logits, state) / state.dot(state))
    for tied in (True, False):
        head = OutputHead(HeadConfig(), 4, 5, tied)
        if head.weight is not None:
            head.weight.data.copy_(embedding.weight)
        with record(head) as trace:
            head(state, embedding)
        near(trace["logits"], told["top_logits"], 1e-5)
        near(trace["logits"].softmax(-1), told["softmax_over_these_five"], told["tolerance"])


class Words:
    """A vocabulary of whole words, in the order of their first appearance behind three special ids."""

    def __init__(self, *texts: list[str]) -> None:
        self.names = ["<pad>", "<bos>", "<eos>", *dict.fromkeys(word for text in texts for word in text)]

    def encode(self, text: list[str]) -> list[int]:
        return [self.names.index(word) for word in text]

    def decode(self, ids: Tensor, **special: str) -> list[str]:
        return [special.get(name.strip("<>"), name) for name in (self.names[i] for i in ids.tolist())]


def test_autoregression(golden) -> None:
    told = golden["autoregression"]
    source, target = ["我", "爱", "NLP"], told["next"][:-1]
    assert "".join(source) == told["source"]
    words = Words(source, target)
    batch = collate([words.encode(source)], [words.encode(target)], pad_id=0, bos_id=1, eos_id=2)
    model = randomise(build("transformer-teaching", vocab_size=len(words.names)))
    with torch.no_grad():
        forced = model(batch.source_BS, batch.target_BT)
        state = model.start(batch.source_BS)
        for step, (prefix, following) in enumerate(zip(told["steps"], told["next"], strict=True)):
            assert words.decode(batch.target_BT[0, : step + 1], bos="START") == prefix
            assert words.decode(batch.labels_BT[0, step : step + 1], eos="END") == [following]
            # Step by step, the model is asked exactly this: what follows this prefix.
            close(model.step(batch.target_BT[:, step : step + 1], state), forced[:, step])
            close(model(batch.source_BS, batch.target_BT[:, : step + 1])[:, -1], forced[:, step])
    assert batch.n_labels == len(told["next"])


def test_shift_right(golden) -> None:
    told = golden["shift_right"]
    source, target = told["source"].split(), told["labels"].removesuffix(" <eos>").split()
    words = Words(source, target)
    batch = collate([words.encode(source)], [words.encode(target)], pad_id=0, bos_id=1, eos_id=2)
    assert " ".join(words.decode(batch.target_BT[0])) == told["decoder_input"]
    assert " ".join(words.decode(batch.labels_BT[0])) == told["labels"]
    assert words.decode(batch.source_BS[0]) == source


def test_batch_shapes(golden) -> None:
    told = golden["batch_shapes"]
    lengths = [told["longest"], *range(1, told["sentences"])]
    tokens, mask = pad([[5] * length for length in lengths], 0)
    assert list(tokens.shape) == told["token_ids"]
    assert mask is not None and mask.sum(1).tolist() == lengths
    model = build("transformer-base", device="meta")
    assert list(model.embed(tokens.to("meta")).shape) == told["after_embedding_d512"]
    assert list(model.encode(tokens.to("meta"), mask.to("meta")).shape) == told["after_embedding_d512"]


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_shapes(golden, heads: int) -> None:
    told = golden["attention_shapes"]
    n_source, n_target = 5, 3
    model = randomise(build("transformer-teaching", n_heads=heads))
    with record(model) as trace, torch.no_grad():
        model(ids(32, 1, n_source), ids(32, 1, n_target))
    parts = {"Q": "q", "K": "k", "scores": "scores", "out": "z"}
    places = {
        "encoder.layers.0.mixer": ("self", n_source),
        "decoder.layers.5.mixer": ("self", n_target),
        "decoder.layers.5.cross": ("cross", None),
    }
    for name, (kind, length) in places.items():
        size = {"L": length, "L_D": n_target, "L_E": n_source, "d_k": 4 // heads}
        for part, axes in told[kind].items():
            assert trace[f"{name}.{parts[part]}"].shape == (1, heads, *(size[axis] for axis in axes)), (name, part)


def test_widths(golden) -> None:
    widths = golden["widths"]
    known = set(widths) & set(presets())
    assert "transformer-base" in known
    for preset in known:
        model = build(preset, device="meta")
        assert model.config.d_model == widths[preset] == model.embed.weight.shape[1]


def test_parameter_counts_of_decoders_built_from_the_same_parts(golden) -> None:
    told, widths = golden["parameter_counts"], golden["widths"]
    for name, layers, heads, context in (("gpt2-small", 12, 12, 1024), ("gpt3-175b", 96, 96, 2048)):
        d, vocab = widths[name], 50257
        block = BlockConfig(
            mixer=AttentionConfig(n_heads=heads, causal=True),
            ffn=MLPConfig(d_ff=4 * d, activation="gelu-tanh"),
            order="pre",
        )
        shape = StackConfig(
            position=LearnedPositionConfig(max_len=context), blocks=(block,) * layers, final_norm=LayerNormConfig()
        )
        with torch.device("meta"):
            parts = torch.nn.ModuleList(
                [
                    TokenEmbedding(EmbedConfig(vocab_size=vocab, scale=False), d),
                    Stack(shape, d),
                    OutputHead(HeadConfig(), d, vocab, tied=True),
                ]
            )
        assert sum(parameter.numel() for parameter in parts.parameters()) == told[name]
