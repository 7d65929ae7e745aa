"""The laws of training: what padding, batching, accumulation and several processes must not change."""

from __future__ import annotations

import math
import multiprocessing
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.collate import IGNORE, Batch, collate
from glassformer.errors import UserError
from glassformer.train import loop, objectives
from glassformer.train.config import TrainSection, load_config
from glassformer.train.distributed import GradientBuffer, World
from glassformer.train.launch import Stop, automatic_workers, launch
from glassformer.train.loop import Trainer
from glassformer.train.objectives import SmoothedCrossEntropy, first_not_finite, token_loss
from glassformer.train.optim import Optimizer, learning_rate
from tests.digits import training
from tests.randomised import random_model

VOCAB = 11


def rows(count: int, longest: int, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    generator = torch.Generator().manual_seed(seed)

    def sentence() -> list[int]:
        length = int(torch.randint(1, longest + 1, (1,), generator=generator))
        return torch.randint(4, VOCAB, (length,), generator=generator).tolist()

    return [(sentence(), sentence()) for _ in range(count)]


def batch_of(pairs, pad_id: int = 0) -> Batch:
    sources, targets = zip(*pairs, strict=True)
    return collate(sources, targets, pad_id=pad_id, bos_id=1, eos_id=2)


def gradients(model, batches, smoothing=0.1):
    """The loss per label of all batches together, and its gradient."""
    model.zero_grad()
    total, labels = 0.0, sum(batch.n_labels for batch in batches)
    for batch in batches:
        loss, _ = token_loss(model, batch, smoothing=smoothing, pad_id=0)
        loss.backward()
        total += loss.item()
    return total / labels, {name: p.grad / labels for name, p in model.named_parameters()}


def assert_equal_training(one, other, tolerance=1e-6):
    assert one[0] == pytest.approx(other[0], abs=tolerance, rel=tolerance)
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], atol=tolerance, rtol=1e-4, msg=name)


def smoothed_by_loops(logits, labels, smoothing, pad_id):
    """The formula of Szegedy et al. 2016 in plain floats, with the padding class given nothing."""
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        log_z = math.log(math.fsum(math.exp(value) for value in row))
        target = {v: smoothing / (len(row) - 1) for v in range(len(row)) if v != pad_id}
        target[label] += 1.0 - smoothing
        total += math.fsum(share * (log_z - row[v]) for v, share in target.items())
    return total


@given(st.integers(1, 7), st.integers(2, 9), st.floats(0.0, 0.9), st.data())
def test_smoothing_is_the_published_formula_with_nothing_on_padding(count, vocab, smoothing, data):
    pad_id = data.draw(st.integers(0, vocab - 1))
    labels = data.draw(
        st.lists(st.integers(0, vocab - 1).filter(lambda v: v != pad_id), min_size=count, max_size=count)
    )
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(count), dtype=torch.float64) * 3
    loss, nll = SmoothedCrossEntropy.apply(logits.float(), torch.tensor(labels), smoothing, pad_id)
    assert float(loss) == pytest.approx(smoothed_by_loops(logits, torch.tensor(labels), smoothing, pad_id), rel=1e-5)
    assert float(nll) == pytest.approx(smoothed_by_loops(logits, torch.tensor(labels), 0.0, pad_id), rel=1e-5)


@pytest.mark.parametrize("count", [1, objectives.ROWS, objectives.ROWS + 3])
def test_the_fused_gradient_is_that_of_the_formula(count):
    logits = torch.randn(count, 9).mul(2).requires_grad_()
    labels, smoothing, pad_id = torch.randint(1, 9, (count,)), 0.2, 0
    loss, _ = SmoothedCrossEntropy.apply(logits, labels, smoothing, pad_id)
    (actual,) = torch.autograd.grad(3.0 * loss, logits)

    plain = logits.detach().double().requires_grad_()
    target = torch.full((count, 9), smoothing / 8, dtype=torch.float64)
    target[:, pad_id] = 0.0
    target[torch.arange(count), labels] += 1.0 - smoothing
    (expected,) = torch.autograd.grad(-3.0 * (target * plain.log_softmax(-1)).sum(), plain)
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-5)


def test_the_gradient_of_the_whole_model_agrees_with_finite_differences():
    model = random_model(encoder_layers=1, decoder_layers=1).double()
    batch = batch_of(rows(3, 4))
    model.zero_grad()
    token_loss(model, batch, smoothing=0.1, pad_id=0)[0].backward()
    for name, parameter in model.named_parameters():
        direction = torch.randn_like(parameter)
        slope, values = float((parameter.grad * direction).sum()), []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * 1e-3 * direction
                loss, _ = token_loss(model, batch, smoothing=0.1, pad_id=0)
                parameter -= sign * 1e-3 * direction
            values.append(float(loss))
        # The loss is float32 by design, which bounds the accuracy of a difference.
        assert (values[0] - values[1]) / 2e-3 == pytest.approx(slope, abs=0.05, rel=0.02), name


@given(st.integers(2, 6), st.integers(0, 50))
@settings(max_examples=8)
def test_the_padded_loss_equals_the_unpadded_one(count, seed):
    model = random_model(seed=seed)
    pairs = rows(count, 6, seed)
    together, apart = batch_of(pairs), [batch_of([pair]) for pair in pairs]
    assert any((batch.labels_BT == IGNORE).any() for batch in apart) is False
    assert_equal_training(gradients(model, [together]), gradients(model, apart))


def test_what_stands_in_the_padding_changes_nothing():
    model, pairs = random_model(), rows(5, 6)
    one, other = batch_of(pairs), batch_of(pairs, pad_id=7)
    assert (one.source_BS != other.source_BS).any() and (one.target_BT != other.target_BT).any()
    assert_equal_training(gradients(model, [one]), gradients(model, [other]), tolerance=1e-7)


def test_the_loss_of_a_token_is_the_same_for_a_batch_of_one_and_of_eight():
    model, pair = random_model(), rows(1, 6)[0]
    assert_equal_training(gradients(model, [batch_of([pair])]), gradients(model, [batch_of([pair] * 8)]))


def test_accumulated_batches_equal_one_big_batch():
    model, pairs = random_model(), rows(12, 6)
    parts = [batch_of(pairs[:1]), batch_of(pairs[1:4]), batch_of(pairs[4:])]
    assert_equal_training(gradients(model, [batch_of(pairs)]), gradients(model, parts))


def test_a_batch_without_labels_has_zero_loss_and_finite_gradients():
    model, batch = random_model(), batch_of(rows(3, 4))
    ignored = Batch(
        batch.source_BS, batch.source_mask_BS, batch.target_BT, torch.full_like(batch.labels_BT, IGNORE), n_labels=0
    )
    loss, nll = token_loss(model, ignored, smoothing=0.1, pad_id=0)
    loss.backward()
    assert float(loss) == float(nll) == 0.0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_the_first_internal_that_is_not_finite_is_named():
    model, batch = random_model(), batch_of(rows(3, 4))
    autocast = torch.autocast("cpu", enabled=False)
    assert first_not_finite(model, [batch], autocast) is None
    with torch.no_grad():
        model.encoder.layers[1].ffn.up.bias.fill_(1e38)
        model.encoder.layers[1].ffn.down.weight.fill_(1e38)
    assert first_not_finite(model, [batch], autocast).startswith("encoder.layers.1.")
    with torch.no_grad():
        model.decoder.layers[0].mixer.query.weight[0, 0] = math.nan
    assert first_not_finite(model, [batch], autocast) == "decoder.layers.0.mixer.query.weight"


def schedule(name, **values):
    return TrainSection(schedule=name, **{"lr": 0.5, "warmup": 10, "steps": 100, "min_lr": 0.1, **values})


def test_schedules_are_the_published_functions_of_the_step():
    for step in (1, 3, 10, 11, 40, 99, 100, 200):
        warm = min(step / 10, 1.0)
        left = max(0.0, (100 - max(step, 10)) / 90)
        cosine = 0.5 + 0.5 * math.cos(math.pi * (1 - left))
        expected = {
            "noam": 0.5 * 512**-0.5 * min(step**-0.5, step * 10**-1.5),
            "constant": 0.5 * warm,
            "inverse-sqrt": 0.5 * min(step / 10, (10 / step) ** 0.5),
            "linear": 0.5 * warm if step < 10 else 0.5 * (0.1 + 0.9 * left),
            "cosine": 0.5 * warm if step < 10 else 0.5 * (0.1 + 0.9 * cosine),
        }
        for name, value in expected.items():
            assert learning_rate(step, schedule(name), 512) == pytest.approx(value, rel=1e-12), (name, step)


@pytest.mark.parametrize("name", ["noam", "constant", "inverse-sqrt", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 10, 1000])
def test_a_schedule_is_finite_from_step_0_on(name, warmup):
    rates = [learning_rate(step, schedule(name, warmup=warmup), 512) for step in range(300)]
    assert all(math.isfinite(rate) and 0 < rate <= 0.5 for rate in rates)


def test_biases_and_norms_are_not_decayed():
    model = random_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Optimizer(model, TrainSection(weight_decay=0.1), World()).step(0.5)
    for name, parameter in model.named_parameters():  # without a gradient, decay alone moves a parameter
        decay = 0.0 if name.endswith("bias") or "norm" in name else 0.5 * 0.1
        assert torch.allclose(parameter, (1 - decay) * before[name]), name


def test_muon_moves_a_matrix_along_the_nearest_orthogonal_one_and_leaves_embeddings_to_adamw():
    """Against the polar factor U Vᵀ by singular value decomposition, which five Newton–Schulz steps come near to."""
    torch.manual_seed(0)
    model = random_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    Optimizer(model, TrainSection(optimizer="muon", muon_rate=3.0), World()).step(0.01)
    matrix = model.get_parameter("decoder.layers.0.ffn.up.weight")
    u, _, vt = torch.linalg.svd(matrix.grad, full_matrices=False)
    moved = (before["decoder.layers.0.ffn.up.weight"] - matrix.detach()) / (0.03 * 0.2 * max(matrix.shape) ** 0.5)
    assert torch.nn.functional.cosine_similarity(moved.flatten(), (u @ vt).flatten(), dim=0) > 0.95
    assert 0.6 < torch.linalg.matrix_norm(moved, 2) < 1.3
    embedding = model.get_parameter("embed.weight")
    assert torch.allclose(before["embed.weight"] - embedding, 0.01 * embedding.grad.sign(), atol=1e-4)


def trainer(tmp_path, **train) -> Trainer:
    config = training(tmp_path, **train)
    config["model"]["dropout"] = 0.0
    (tmp_path / "run").mkdir()
    return Trainer(load_config(config), World(), Stop(), resume=False)


def first_gradient(tmp_path, world: World, **train):
    """Loss and summed gradient of a run's first step, through the loop itself."""
    config = training(tmp_path / f"rank{world.rank}", **train)
    config["model"]["dropout"] = 0.0
    (tmp_path / f"rank{world.rank}" / "run").mkdir()
    made = Trainer(load_config({**config, "train": {**config["train"], "clip": None}}), world, Stop(), resume=False)
    made._begin_epoch()
    seen = []
    made._report = lambda loss, norm, rate, tokens: seen.append((loss, norm, tokens))
    made._step(made._batches[:2])
    return seen[0], made.gradients[:-5].tolist()


def _work(folder, stop):
    return first_gradient(folder, World())


@pytest.mark.slow
def test_two_workers_step_as_one_does(tmp_path):
    one, gradient = first_gradient(tmp_path / "one", World())
    two, other = launch(_work, tmp_path / "two", workers=2)
    assert two == pytest.approx(one, rel=1e-5)
    torch.testing.assert_close(torch.tensor(gradient), torch.tensor(other), atol=1e-6, rtol=1e-4)
    assert max(map(abs, gradient)) > 1e-2


def _sum(numel, stop):
    world = World()
    buffer = GradientBuffer(numel, world, torch.device("cpu"))
    totals = []
    for call in range(3):
        buffer.flat.copy_(torch.arange(numel) * (world.rank + 1.0) + call)
        buffer.sum_()
        totals.append(buffer.flat.clone())
    everyone = world.gather(torch.stack(totals))
    return [values.tolist() for values in everyone]


@pytest.mark.slow
def test_a_gradient_buffer_sums_over_the_processes_and_gives_each_the_same_bits():
    for workers, numel in ((1, 5), (3, 7)):
        everyone = launch(_sum, numel, workers)
        ranks = range(1, workers + 1)
        expected = torch.stack([torch.arange(numel) * sum(ranks) + call * workers for call in range(3)]).float()
        assert everyone == [expected.tolist()] * workers


def _refuse(_, stop):
    if World().rank == 1:
        raise UserError("pairs.tsv:3: no target")
    World().barrier()


def _fill_the_disk(_, stop):
    if World().rank == 0:
        raise OSError(28, "No space left on device", "model.safetensors")
    World().barrier()


def _die(_, stop):
    import os

    if World().rank == 1:
        os.kill(os.getpid(), 9)
    World().barrier()


@pytest.mark.slow
def test_a_worker_s_mistake_comes_through_and_a_worker_s_death_is_told():
    with pytest.raises(UserError, match=r"^pairs\.tsv:3: no target$"):
        launch(_refuse, None, 2)
    with pytest.raises(OSError) as caught:
        launch(_fill_the_disk, None, 2)
    assert (caught.value.errno, caught.value.filename) == (28, "model.safetensors")
    with pytest.raises(RuntimeError, match=r"worker 1 died with exit code -9; out of memory\? lower"):
        launch(_die, None, 2)
    assert multiprocessing.active_children() == []


def test_small_batches_get_few_workers():
    assert automatic_workers(300) == 1
    assert 1 <= automatic_workers(10**9) == automatic_workers(10**8)


def test_a_step_is_clipped_to_the_largest_norm(tmp_path):
    made = trainer(tmp_path, clip=0.01)
    made._begin_epoch()
    norms = []
    made._report = lambda loss, norm, rate, tokens: norms.append(norm)
    made._step(made._batches[:1])
    assert norms[0] > 0.01
    assert float(made.gradients.norm()) == pytest.approx(0.01, rel=1e-4)


def test_a_step_without_labels_is_skipped_with_a_warning(tmp_path, monkeypatch, capsys):
    made = trainer(tmp_path, steps=2)
    honest, calls = made.objective.batch, []

    def first_ignored(*arguments):
        batch = honest(*arguments)
        calls.append(batch)
        if len(calls) > 1:
            return batch
        ignored = torch.full_like(batch.labels_BT, IGNORE)
        return Batch(batch.source_BS, batch.source_mask_BS, batch.target_BT, ignored, n_labels=0)

    monkeypatch.setattr(made.objective, "batch", first_ignored)
    monkeypatch.setattr(made, "_evaluate", lambda dev: False)
    before = made.model.embed.weight.clone()
    made._begin_epoch()
    assert made._step(made._batches[:1]) is False
    assert made.progress.step == 0 and made.progress.batch == 1
    assert torch.equal(made.model.embed.weight, before)
    assert "skipped a batch without labels after step 0" in capsys.readouterr().err
    assert made.run().step == 2
    assert all(p.isfinite().all() for p in made.model.parameters())


def test_a_loss_that_is_not_finite_names_the_step_and_the_layer_and_saves_nothing(tmp_path):
    made = trainer(tmp_path)
    with torch.no_grad():
        made.model.decoder.layers[1].ffn.up.weight[0, 0] = math.inf
    with pytest.raises(UserError, match=r"^step 1: loss nan.*first seen in decoder\.layers\.1\.ffn\.up\.weight; lower"):
        made.run()
    assert made.checkpoints.steps() == []


def test_the_end_of_an_epoch_takes_a_smaller_step_and_reads_every_pair_once(tmp_path, monkeypatch):
    made = trainer(tmp_path, accumulate=3)
    made._begin_epoch()
    count = len(made._batches)
    assert count % 3
    made.config = SimpleNamespace(
        **{**dict(made.config), "train": made.config.train.model_copy(update={"steps": -(-count // 3)})}
    )
    read, honest = [], made.objective.batch
    monkeypatch.setattr(made.objective, "batch", lambda epoch, rows: read.extend(rows) or honest(epoch, rows))
    monkeypatch.setattr(made, "_evaluate", lambda dev: False)
    monkeypatch.setattr(loop, "dump_config", lambda config: "")
    made.run()
    assert sorted(read) == list(range(2 * 120))
