"""The graph of a model: what each named tensor is computed from, found out rather than declared, so held to laws."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from safetensors import safe_open
from torch import Tensor, nn

from glassformer.families import build, presets
from glassformer.models.build import build_model
from glassformer.nn.tap import Tap, _recorder
from glassformer.trace.manifest import manifest, residual_stream
from glassformer.trace.provenance import provenance, tiny_inputs, weights
from glassformer.trace.recorder import record
from tests.family_configs import decoders, encoders, relatives
from tests.randomised import configs, random_model, randomise

TINY = sorted(name for name in presets() if name.endswith("-tiny"))


class Meddler:
    """Passes every tensor on, but for one tap whose values it changes; keeps what it saw."""

    def __init__(self, model: nn.Module, target: str | None = None) -> None:
        self.names = {id(module): name for name, module in model.named_modules() if isinstance(module, Tap)}
        self.target, self.seen = target, {}

    def see(self, tap: Tap, value: Tensor) -> Tensor:
        name = self.names[id(tap)]
        if name == self.target:
            noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(7)).to(value.dtype)
            value = value + noise
        self.seen[name] = value.detach().clone()
        return value


@torch.no_grad()
def watched(model: Any, target: str | None = None) -> dict[str, Tensor]:
    meddler = Meddler(model, target)
    token = _recorder.set(meddler)
    try:
        model(*inputs(model))
    finally:
        _recorder.reset(token)
    return meddler.seen


def inputs(model: Any) -> list[Tensor]:
    """Several tokens or patches, of different kinds, so that positions have something to look at."""
    tiny = tiny_inputs(model)
    if tiny[0].is_floating_point():
        size = model.config.embed.image_size
        return [torch.randn(1, tiny[0].shape[1], *size, generator=torch.Generator().manual_seed(3))]
    return [torch.tensor([[1, 4, 2, 5]]), torch.tensor([[3, 1, 6]])][: len(tiny)]


def descendants(parents: dict[str, tuple[str, ...]], name: str) -> set[str]:
    found: set[str] = set()
    for each, own in parents.items():  # taps come in the order in which data passes them
        if any(parent == name or parent in found for parent in own):
            found.add(each)
    return found


def check_graph(model: Any) -> None:
    found = provenance(model)
    names = {name for name, _ in weights(model)}
    embeddings = {name for name in names if "embed" in name}
    reached: dict[str, bool] = {}
    for name, parents in found.parents.items():
        assert len(set(parents)) == len(parents)
        for parent in parents:
            assert parent in names or parent in reached, f"{name} ← {parent}, which is no tensor before it"
        reached[name] = any(parent in embeddings or reached.get(parent, False) for parent in parents)
    for name, ok in reached.items():  # a table of positions or decays starts from nothing that was read
        assert ok or not any(parent in reached for parent in found.parents[name]), name


@pytest.mark.parametrize("name", TINY)
def test_every_tap_of_every_family_has_parents_that_lead_to_the_embedding(name: str) -> None:
    model = build(name).eval()
    check_graph(model)
    with record(model) as trace, torch.no_grad():
        model(*inputs(model))
    assert set(provenance(model).parents) == set(trace)


@settings(max_examples=12)
@given(configs())
def test_encoder_decoders_of_every_variant_have_a_sound_graph(config) -> None:
    check_graph(random_model(config))


@pytest.mark.parametrize("shapes", [decoders(), encoders(), relatives()], ids=["decoders", "encoders", "relatives"])
def test_relatives_have_a_sound_graph(shapes) -> None:
    @settings(max_examples=8)
    @given(shapes)
    def check(config) -> None:
        check_graph(randomise(build_model(config)).eval())

    check()


@pytest.mark.parametrize("name", TINY)
def test_what_changes_with_a_tensor_is_what_descends_from_it(name: str) -> None:
    model = randomise(build(name)).eval()
    parents = provenance(model).parents
    plain = watched(model)
    for target in list(parents)[:: max(1, len(parents) // 12)]:
        changed = {each for each, value in watched(model, target).items() if not torch.equal(value, plain[each])}
        # What a mask lets nobody look at this time, such as keys of global tokens where there is none, changes nothing.
        expected = {target} if changed == {target} else descendants(parents, target) | {target}
        assert changed == expected, target


def test_parents_of_the_parts_are_the_formulas_of_the_paper() -> None:
    for order in ("pre", "post"):
        parents = provenance(random_model(order=order)).parents
        cross = "decoder.layers.1.cross"
        before = "decoder.layers.1.mixer_residual." + ("sum" if order == "pre" else "normed")
        asked = "decoder.layers.1.cross_residual.normed" if order == "pre" else before
        assert parents[f"{cross}.q"] == (asked, f"{cross}.query.weight", f"{cross}.query.bias")
        assert parents[f"{cross}.k"] == ("encoder.output", f"{cross}.key.weight", f"{cross}.key.bias")
        assert set(parents[f"{cross}.scores"]) == {f"{cross}.q", f"{cross}.k"}
        assert parents[f"{cross}.pattern"] == (f"{cross}.scores",)
        assert set(parents[f"{cross}.z"]) == {f"{cross}.pattern", f"{cross}.v"}
        assert parents[f"{cross}.result"] == (f"{cross}.z", f"{cross}.out.weight", f"{cross}.out.bias")
        assert set(parents[f"{cross}_residual.sum"]) == {before, f"{cross}.result"}
        assert set(parents["encoder.input"]) == {"encoder.embedded", "encoder.positions"}
        assert parents["encoder.positions"] == ("encoder.position.weight",)
        assert set(parents["head.logits"]) == {"decoder.output", "embed.weight"}


def test_an_operation_in_place_passes_on_what_it_wrote() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.joined = Tap("B D"), Tap("B D"), Tap("B D")
            self.weight = nn.Parameter(torch.ones(2, 3))

        def forward(self, ids: Tensor) -> Tensor:
            a, b = self.first(self.weight[ids] * 2), self.second(self.weight[ids] * 3)
            out = torch.zeros_like(a).repeat(1, 2)
            out[:, :3] = a
            out[:, 3:].copy_(b)
            return self.joined(out)

    from glassformer.trace.provenance import Provenance

    model = Writes()
    seen = Provenance(model)
    token = _recorder.set(seen)
    try:
        with seen, torch.no_grad():
            model(torch.tensor([0]))
    finally:
        _recorder.reset(token)
    assert set(seen.parents["joined"]) == {"first", "second"}
    assert seen.parents["first"] == ("weight",)


@pytest.mark.parametrize("name", TINY)
def test_the_parts_of_a_model_hold_all_its_taps_and_parameters_and_are_joined(name: str) -> None:
    model = build(name).eval()
    found = manifest(model)
    ids = [part.id for part in found.parts]
    assert len(set(ids)) == len(ids)
    assert sorted(tap for part in found.parts for tap in part.taps) == sorted(found.tensors)
    assert sum(part.parameters for part in found.parts) == model.num_parameters()
    known = {name: tuple(tensor.shape) for name, tensor in weights(model)}
    assert all(known[weight] == shape for part in found.parts for weight, shape in part.weights.items())
    order = {each: place for place, each in enumerate(ids)}
    for edge in found.edges:
        assert order[edge.source] < order[edge.target], f"{edge} goes against the order of data"
    reached = {edge.target for edge in found.edges} | {
        part.id for part in found.parts if part.kind in ("tokens", "patches")
    }
    reached |= {part.id for part in found.parts if part.kind == "position"}
    assert reached == set(ids)


def test_residual_memory_and_data_are_told_apart() -> None:
    found = manifest(random_model(order="post"))
    kinds = {(edge.source, edge.target): edge.kind for edge in found.edges}
    assert kinds["encoder.input", "encoder.layers.0.mixer_residual"] == "residual"
    assert kinds["encoder.layers.0.mixer", "encoder.layers.0.mixer_residual"] == "data"
    last = "encoder.layers.1.ffn_residual.norm"
    assert kinds[last, "decoder.layers.0.cross"] == kinds[last, "decoder.layers.1.cross"] == "memory"
    assert ("head", "softmax") in kinds
    shapes = {(edge.source, edge.target): edge.shape for edge in found.edges}
    assert shapes["embed", "encoder.input"] == "S × 8" and shapes["head", "softmax"] == "T × 11"


@pytest.mark.parametrize("order", ["pre", "post"])
def test_the_residual_stream_ends_where_the_stack_does(order: str) -> None:
    model = random_model(order=order)
    with record(model) as trace, torch.no_grad():
        model(*inputs(model))
    stream = residual_stream(model.decoder, "decoder")
    assert list(stream) == ["decoder.input", "decoder.layers.0", "decoder.layers.1"]
    last = trace[stream["decoder.layers.1"]]
    norm = model.decoder.final_norm
    torch.testing.assert_close(norm(last) if norm else last, trace["decoder.output"])


def test_a_trace_is_saved_with_what_is_known_of_it_and_shown_in_a_notebook(tmp_path) -> None:
    model = random_model()
    with record(model) as trace, torch.no_grad():
        model(*inputs(model))
    trace.save(tmp_path / "trace.safetensors")
    with safe_open(tmp_path / "trace.safetensors", "pt") as file:
        told = json.loads(file.metadata()["manifest"])
        assert set(file.keys()) == set(trace) == set(told)
        for name in trace:
            assert torch.equal(file.get_tensor(name), trace[name])
    assert told["head.logits"]["axes"] == "B T V" and told["head.logits"]["part"] == "head"
    shown = trace._repr_html_()
    assert shown.count("<img") == len(trace) and "1 × 2 × 3 × 4" in shown
    assert "://" not in shown.replace("data:image/png;base64", ""), "it asks for nothing outside"


def test_part_of_a_model_is_told_by_axes_and_shapes_alone() -> None:
    layer = random_model().decoder.layers[0].ffn
    with record(layer) as trace, torch.no_grad():
        layer(torch.ones(1, 2, 8))
    assert trace.manifest()["pre"] == {"axes": "B T F", "shape": [1, 2, 12]}
