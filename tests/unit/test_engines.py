"""What computes behind a translator: whichever it is, the same text comes out, and no option is lost on the way."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch

from glassformer import api
from glassformer.api import Translator, load
from glassformer.engines.engine import Unavailable
from glassformer.engines.model import ModelEngine
from glassformer.engines.native import NativeEngine
from glassformer.errors import UserError
from glassformer.families import configure
from glassformer.generate import BannedWords, NoRepeatNgram, Request, SamplingConfig, SearchConfig, Token, search
from glassformer.generate.constraints import Constraints
from glassformer.header import Header, Translation, read_config
from glassformer.models.build import build_model
from glassformer.runtime.cache import packed
from glassformer.runtime.decodable import NativeDecodable
from glassformer.runtime.engine import EngineUnavailable, NativeModel
from glassformer.store import FileHeader, read_header, save_model
from glassformer.text.tokenizer import Tokenizer
from tests.toys import batch

LINES = ["我爱自然语言处理。", "我喜欢打篮球。", "I love natural language processing.", "The cat sat on the mat."] * 4
TEXTS = ["我爱打篮球。", "", "The cat", "I love the cat on the mat.", "<b>我</b>爱 {name}。", "我"]
BOTH = Translation(source="zh", target="en", both_directions=True)


class FakeNative:
    """The native engine's interface over the torch module; counts what is asked of it."""

    precision, prompted = "fp32", False
    source_limit = target_limit = 64

    def __init__(self, module) -> None:
        self.module, self.calls = module, Counter()
        self.engine = ModelEngine(module)
        self.cross_heads = self.engine.cross_heads

    def search(
        self, sources, *, prefixes, limits, beam_size, n_best, length_penalty, bos_id, eos_id, banned_ids, **bans
    ):
        self.calls["search"] += 1
        processors = [BannedWords(tuple(bans["banned_phrases"]))]
        if bans["no_repeat_ngram"]:
            processors.append(NoRepeatNgram(bans["no_repeat_ngram"]))
        found = []
        for source, prefix, limit in zip(sources, prefixes, limits, strict=True):
            config = SearchConfig(beam_size, n_best, length_penalty, limit - len(prefix))
            request = Request(
                bos_id, eos_id, banned_ids, processors=processors, constraints=[Constraints(tuple(prefix))]
            )
            found += search(self.module, *batch([tuple(source)]), config, request)
        return found

    def score(self, sources, targets, *, bos_id):
        rows = zip(sources, targets, strict=True)
        logits = [self.module(torch.tensor([s]), torch.tensor([[bos_id, *t[:-1]]]))[0].log_softmax(1) for s, t in rows]
        return [[row[i, token].item() for i, token in enumerate(t)] for row, t in zip(logits, targets, strict=True)]

    def cross_attention(self, sources, targets, heads):
        return self.engine.cross_attention(sources, targets, heads)

    def start(self, sources):
        self.calls["start"] += 1
        return FakeState(self.module, self.module.start(*batch([tuple(source) for source in sources])))


class CountedNative:
    """The native engine itself; counts what is asked of it."""

    def __init__(self, native) -> None:
        self.native, self.calls = native, Counter()

    def __getattr__(self, name):
        self.calls[name] += 1
        return getattr(self.native, name)


class FakeState:
    logits_NV = None

    def __init__(self, module, state) -> None:
        self.module, self.state = module, state

    @property
    def length(self):
        return self.state.length

    def step(self, tokens, *, last_only=True):
        return self.module.step(torch.from_numpy(tokens), self.state, last_only=last_only).detach().numpy()

    def select(self, index):
        self.state.select(torch.as_tensor(index))

    def truncate(self, length):
        self.state.truncate(length)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A MODEL directory of random weights."""
    tokenizer = Tokenizer.train(LINES, vocab_size=330, languages=("zh", "en"))
    torch.manual_seed(7)
    module = build_model(configure("transformer-tiny", vocab_size=tokenizer.vocab_size + 5, max_len=64))
    with torch.no_grad():
        module.embed.weight.mul_(4)  # far from uniform, so that one hypothesis differs from another
    path = tmp_path_factory.mktemp("model") / "zh-en"
    save_model(path, module, tokenizer, BOTH)
    return path


@pytest.fixture(params=["a stub", "the real engine"])
def pair(model, request, tmp_path, monkeypatch):
    """The same model in PyTorch and in a native engine."""
    torch_one = load(model, engine="model")
    if request.param == "a stub":
        fake = FakeNative(torch_one.model)
    else:
        monkeypatch.setenv("GLASSFORMER_CACHE", os.fspath(tmp_path))
        try:
            fake = CountedNative(NativeModel.open(packed(model, "fp32")))
        except EngineUnavailable as reason:
            pytest.skip(f"the native engine is not there: {reason}")
    engine = NativeEngine(fake, Header.read(model).vocab_size, lambda: torch_one.model)
    return torch_one, Translator(engine, torch_one.tokenizer, BOTH), fake


FUSED = [{}, {"beam_size": 1}, {"beam_size": 4, "n_best": 3, "length_penalty": 0.3}, {"temperature": 0.0, "top_k": 2}]
FUSED += [{"no_repeat_ngram": 1}, {"banned": ["love"]}, {"banned": ["the"], "no_repeat_ngram": 2, "beam_size": 3}]
STEPPED = [
    {"beam_size": 4, "beam_groups": 2, "diversity": 1.0},
    {"temperature": 1.3, "top_k": 40, "seed": 5},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 1.5, "no_repeat_ngram": 2},
    {"glossary": {"猫": "dog", "cat": "狗", "我": "me"}, "mask": None},
]


@pytest.mark.parametrize("options", FUSED + STEPPED)
@pytest.mark.parametrize("prefix", [None, ["The", "", "猫", "", "a", "x"]])
def test_an_option_means_the_same_in_every_engine_and_the_fused_loop_gets_what_it_covers(pair, options, prefix):
    one, other, fake = pair
    options = {**options, "max_new_tokens": 8, "details": True}
    wanted = one.translate(TEXTS, prefix=prefix, **options)
    found = other.translate(TEXTS, prefix=prefix, **options)
    fused = {key: options[key] for key in options.keys() - {"max_new_tokens", "details"}} in FUSED
    assert fake.calls["search" if fused else "start"]
    if not fused and "glossary" not in options:  # where no sentence of a batch holds a term, nothing is forced
        assert not fake.calls["search"]
    for mine, its in zip(wanted, found, strict=True):
        assert [c["translation"] for c in mine["n_best"]] == [c["translation"] for c in its["n_best"]]
        assert [c["score"] for c in mine["n_best"]] == pytest.approx([c["score"] for c in its["n_best"]], abs=1e-4)


def test_scores_alignments_and_events_are_those_of_the_model(pair):
    one, other, _ = pair
    pairs = [("我爱打篮球。", "I love the cat."), ("The cat", "猫"), ("我", "")]
    for mine, its in zip(one.score(pairs), other.score(pairs), strict=True):
        assert [t["logprob"] for t in mine["tokens"]] == pytest.approx([t["logprob"] for t in its["tokens"]], abs=1e-4)
    aligned = [t.translate("我爱打篮球。", max_new_tokens=5, alignments=True, details=True) for t in (one, other)]
    assert aligned[0]["alignment"] == aligned[1]["alignment"]
    assert other.model is one.model
    constraints = [Constraints((7, 300)), Constraints()]
    request = Request(1, 2, (0, 1), constraints=constraints)
    config, sources = SamplingConfig(temperature=0.0, max_new_tokens=6), [[5, 9, 2], [6, 300, 301, 2]]
    told = [list(engine.stream(sources, config, request)) for engine in (one.engine, other.engine)]
    wanted, found = ([(e.sentence, e) for e in events] for events in told)
    assert len(found) == len(wanted) > 8
    # The fused loop tells one sentence after another.
    for (_, mine), (_, its) in zip(sorted(wanted, key=lambda x: x[0]), found, strict=True):
        if isinstance(mine, Token):
            assert its.logprob == pytest.approx(mine.logprob, abs=1e-4)
            mine = replace(mine, logprob=its.logprob)
        assert mine == its


def test_a_state_takes_back_what_it_read(pair):
    decodable = NativeDecodable(pair[2])
    state = decodable.start(*batch([(5, 9, 2), (6, 300, 301, 2)]))
    first = decodable.step(torch.tensor([[1, 7], [1, 8]]), state, last_only=False)
    assert first.shape[:2] == (2, 2) and state.length == 2
    state.truncate(1)
    again = decodable.step(torch.tensor([[7], [8]]), state)
    assert state.length == 2 and torch.allclose(first[:, 1], again, atol=1e-5)


def test_bf16_streams_in_bf16_and_leaves_the_readers_own_arithmetic_alone(pair):
    engine, inside = ModelEngine(pair[0].model, precision="bf16"), set()
    layer = next(m for m in engine.module.modules() if isinstance(m, torch.nn.Linear))
    handle = layer.register_forward_hook(lambda module, inputs, output: inside.add(output.dtype))
    for _ in engine.stream([[5, 9, 2]], SamplingConfig(temperature=0.0, max_new_tokens=3), Request(1, 2)):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    handle.remove()
    assert inside == {torch.bfloat16}


def test_the_light_header_is_the_checked_one(model, tmp_path):
    data = read_config(model)
    data["model"]["decoder"]["position"]["max_len"] = 32
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    full, light = read_header(tmp_path), Header.read(tmp_path)
    assert (light.vocab_size, light.translation) == (full.model.target_vocab_size, full.translation)
    assert light.source_limit == full.model.encoder.position.max_len
    assert light.target_limit == full.model.decoder.position.max_len
    assert light.tokenizer_sha256 == full.tokenizer_sha256
    data |= {"translation": {"source": "zh", "target": "en", "both_direction": True}}
    with pytest.raises(UserError, match="translation.both_direction"):
        FileHeader.from_dict(data)


def test_an_engine_that_is_not_there_is_named_only_to_who_asked_for_it(model, monkeypatch, caplog):
    def unavailable(*args):
        raise Unavailable("no kernels for this processor")

    monkeypatch.setattr(api, "open_native", unavailable)
    assert [load(model, engine=name).engine.name for name in ("auto", "torch", "model")] == ["torch", "torch", "model"]
    assert not caplog.records
    with pytest.raises(UserError, match="^--engine native: no kernels for this processor$"):
        load(model, engine="native")
    with pytest.raises(UserError, match="^--precision int8: only the engines native and torch.*--engine model"):
        load(model, precision="int8", engine="model")
    for options, message in (
        ({"engine": "naive"}, "--engine naive: .*auto, native, torch, model"),
        ({"threads": 0}, "--threads 0"),
        ({"engine": "native", "device": "meta"}, "--engine native: .*CPU"),
        ({"engine": "torch", "device": "meta"}, "--engine torch: .*CPU"),
    ):
        with pytest.raises(UserError, match=message):
            load(model, **options)


# Stands in for the native library where that cannot be built: it answers with the source, and a log-probability of -1.
STUB = """
import sys, types
from collections import namedtuple
Found = namedtuple("Found", "ids token_logprobs finished")
class NativeModel:
    precision, prompted, source_limit, target_limit, tokenizer = "int8", False, 64, 64, None
    open = classmethod(lambda cls, file, threads=None: cls())
    def search(self, sources, **options):
        return [[Found(tuple(ids[1:-1]), (-1.0,) * (len(ids) - 1), True)] for ids in sources]
    def score(self, sources, targets, *, bos_id):
        return [[-1.0] * len(ids) for ids in targets]
for name, content in {
    "engine": {"NativeModel": NativeModel, "EngineUnavailable": OSError},
    "cache": {"packed": lambda path, precision, pack: path},
}.items():
    module = sys.modules["glassformer.runtime." + name] = types.ModuleType(name)
    vars(module).update(content)
"""


@pytest.mark.parametrize("stub", [STUB, "import sys"], ids=["a stub", "the real engine"])
def test_translating_and_scoring_in_the_native_engine_load_no_pytorch(model, stub, tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSFORMER_CACHE", os.fspath(tmp_path))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("zh\ten\n我爱\tThe cat\n", encoding="utf-8")
    load(model)  # packed once for all where the library is there, which takes more
    code = f"""{stub}
import glassformer as gf
translator = gf.load({os.fspath(model)!r})
native = translator.engine.name == "native"  # else the library is not built here, and PyTorch has to do
assert translator.translate("我爱 {{x}}。The cat.") and translator.score([("我爱", "The cat")])
print({{"torch", "numpy", "pydantic", "sacrebleu"}} & set(sys.modules) if native else set())
from glassformer.cli.main import main
assert main(["translate", "-m", {os.fspath(model)!r}, "-b", "2", "我爱"]) == 0
assert main(["score", "-m", {os.fspath(model)!r}, "--tsv", {os.fspath(pairs)!r}]) == 0
print({{"torch", "sacrebleu"}} & set(sys.modules) if native else set())  # Typer may load pydantic
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == lines[-1] == "set()" and lines[-2].startswith('{"score"')


@pytest.mark.parametrize("engine", ["native", "torch", "model"])
def test_weights_that_are_no_numbers_are_told_in_one_line(engine, model, tmp_path, capsys):
    from safetensors.torch import load_file, save_file

    from glassformer.cli.main import main

    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    weights = load_file(broken / "model.safetensors")
    weights["encoder.layers.0.ffn.up.weight"][0] = float("nan")
    save_file(weights, broken / "model.safetensors")
    assert main(["translate", "-m", os.fspath(broken), "--engine", engine, "The cat"]) == 2
    said = capsys.readouterr()
    assert not said.out and len(said.err.splitlines()) == 1 and "NaN" in said.err


def test_alignments_and_inline_tags_in_the_native_engine_load_no_pytorch(model, tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSFORMER_CACHE", os.fspath(tmp_path))
    if load(model).engine.name != "native":
        pytest.skip("the native engine is not built here")
    code = f"""
import sys
from glassformer.cli.main import main
asked = ["translate", "-m", {os.fspath(model)!r}, "-b", "1", "--max-new-tokens", "5", "<b>我</b>爱 The cat。"]
assert main([*asked, "--alignments", "--format", "jsonl"]) == 0
import glassformer as gf
assert gf.load({os.fspath(model)!r}).engine.name == "native"
print({{"torch", "sacrebleu"}} & set(sys.modules))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    record, loaded = ran.stdout.splitlines()
    assert json.loads(record)["alignment"] and json.loads(record)["translation"].count("b>") == 2
    assert loaded == "set()"
