"""`glassformer train` as a user runs it: one line for each mistake, data on stdout only, and it learns."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from glassformer.api import load
from glassformer.cli.main import main
from glassformer.train.config import load_config
from glassformer.train.evaluate import corpus_bleu
from glassformer.train.loop import train
from tests.digits import pairs, training, write_tsv


def write(folder: Path, config: dict) -> str:
    file = folder / "c.yaml"
    file.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    return str(file)


def glassformer(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "glassformer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=300, **options)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--set", "train.stpes=3"], "unknown key"),
        (["--set", "model.preset=transformer-tny"], "did you mean 'transformer-tiny'?"),
        (["--set", "data.train=absent.tsv"], "absent.tsv: cannot read it"),
        (["--resume"], "nothing to resume"),
        ([], "holds a run at step 7"),
    ],
)
def test_what_needs_no_model_is_told_without_pytorch(tmp_path, flags, told):
    file = write(tmp_path, training(tmp_path))
    if not flags:
        (tmp_path / "run/step-7").mkdir(parents=True)
    code = (
        "import sys; sys.modules['torch'] = None; from glassformer.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    run = subprocess.run([sys.executable, "-c", code, "train", file, *flags], capture_output=True, text=True)
    assert run.returncode == 2 and told in run.stderr and "\n" not in run.stderr.strip(), run.stderr


def test_dump_config_prints_the_resolved_config_and_nothing_else(tmp_path, capsys):
    file = write(tmp_path, training(tmp_path))
    assert main(["train", file, "--set", "train.lr=3e-4", "--set", "data.target=no", "--dump_config"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    config = load_config(yaml.safe_load(shown.out))
    assert config.train.lr == 3e-4 and config.data.target == "no" and config.train.clip == 1.0
    assert not (tmp_path / "run").exists()


PLAIN = ["c.yaml", "--set", "data.dev=null", "--set"]
GPT = [*PLAIN, "model={preset: gpt2-tiny}", "--set", "data.train=three.zh"]
BERT = [*PLAIN, "model={preset: bert-tiny}", "--set", "objective={type: classification}"]
TAGS = [*PLAIN, "model={preset: bert-tiny}", "--set", "objective={type: token-classification}"]
VIT = [*PLAIN, "model={preset: vit-tiny, image_size: 4, patch_size: 2, channels: 1}"]
MISTAKES = {
    "no such config": (["absent.yaml"], "absent.yaml: cannot read the config"),
    "misspelt key": (["c.yaml", "--set", "train.stpes=3"], "unknown key 'train.stpes'; did you mean 'steps'?"),
    "misspelt flag": (["c.yaml", "--resum"], "no flag '--resum'; did you mean '--resume'?"),
    "no such corpus": (["c.yaml", "--set", "data.train=absent.tsv"], "absent.tsv: cannot read it: No such file"),
    "empty corpus": (["c.yaml", "--set", "data.train=empty.tsv"], "empty.tsv: no sentence pairs in it"),
    "not UTF-8": (["c.yaml", "--set", "data.train=gbk.tsv"], "gbk.tsv:2: byte 0xd6"),
    "one-sided": (["c.yaml", "--set", "data.train=half.tsv"], "half.tsv:3: the target is blank"),
    "unequal files": (
        ["c.yaml", "--set", "data.train=[[three.zh, two.en]]"],
        "three.zh has 3 lines but two.en has 2",
    ),
    "too long": (
        ["c.yaml", "--set", "data.max_len=2", "--set", "data.dev=null"],
        "every example is longer than 2 tokens a side",
    ),
    "dev too long": (["c.yaml", "--set", "data.dev=long.tsv"], "data.dev: no example fits data.max_len 256"),
    "vocabulary": (["c.yaml", "--set", "tokenizer.vocab_size=9"], "at least"),
    "no tokenizer": (["c.yaml", "--set", "tokenizer.from=absent.json"], "absent.json"),
    "bare tokenizer": (["c.yaml", "--set", "tokenizer.from=bare.json"], "the tokenizer lacks <2zh>, <2en>"),
    "nothing to resume": (["c.yaml", "--resume"], "nothing to resume"),
    "start from nothing": (["c.yaml", "--set", "model={from: absent}"], "absent: not a model directory"),
    "no head for it": (
        ["c.yaml", "--set", "model={preset: bert-tiny}"],
        "c.yaml: the model's head does not say what to learn; give objective",
    ),
    "another kind": (
        ["c.yaml", "--set", "objective={type: masked-lm}"],
        "objective masked-lm: the model is of the kind encoder-decoder, and it takes encoder over tokens",
    ),
    "misspelt objective": (["c.yaml", "--set", "objective={type: mlm}"], "c.yaml: objective: "),
    "another objective's option": (
        ["c.yaml", "--set", "objective={type: causal-lm, noise: 0.2}"],
        "unknown key 'objective.noise'; known here: type, pack",
    ),
    "empty document": ([*GPT, "--set", "data.train=empty.tsv"], "empty.tsv: no text in it"),
    "pairs for documents": (
        [*GPT, "--set", "data.train=[[three.zh, two.en]]"],
        "three.zh: objective causal-lm reads one",
    ),
    "rows beyond the positions": (
        [*GPT, "--set", "data.max_len=80"],
        "data.max_len 80: the model has 64 positions; lower it, or raise model.max_len",
    ),
    "unknown label": (
        [*BERT, "--set", "data.train=good.tsv", "--set", "data.dev=other.tsv"],
        "data.dev: label 'ugly' is not in data.train, whose labels are bad, good",
    ),
    "no label": ([*BERT, "--set", "data.train=half.csv"], "half.csv:2: expected a text and a label"),
    "no tag": ([*TAGS, "--set", "data.train=three.zh"], "three.zh:1: expected a word, a tab and its label"),
    "another size of image": (
        [*VIT, "--set", "data.train=image.csv"],
        "image.csv: images of 1 × 2 × 2, but the model reads 1 × 4 × 4; set model.image_size",
    ),
    "no such image": ([*VIT, "--set", "data.train=[[absent, absent]]"], "absent: cannot read it: No such file"),
    "dropout of words": (
        [
            "c.yaml",
            "--set",
            "train.bpe_dropout=0.1",
            "--set",
            "tokenizer.kind=unigram",
            "--set",
            "tokenizer.vocab_size=300",
        ],
        "BPE dropout needs a bpe tokenizer",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    from glassformer.text.tokenizer import Tokenizer

    path = tmp_path_factory.mktemp("mistakes")
    write(path, training(path))
    write_tsv(path / "half.tsv", [("一", "one"), ("二", "")])
    write_tsv(path / "long.tsv", [("一" * 300, "one")])
    (path / "empty.tsv").touch()
    (path / "gbk.tsv").write_bytes(b"zh\ten\n" + "中\tmiddle\n".encode("gbk"))
    (path / "three.zh").write_text("一\n二\n三\n", encoding="utf-8")
    (path / "good.tsv").write_text("text\tlabel\nyes\tgood\nno\tbad\n", encoding="utf-8")
    (path / "other.tsv").write_text("yes\tugly\n", encoding="utf-8")
    (path / "half.csv").write_text('text,label\n"no, never",\n', encoding="utf-8")
    (path / "image.csv").write_text("1,2,3,4,cat\n", encoding="utf-8")
    (path / "two.en").write_text("one\ntwo\n", encoding="utf-8")
    Tokenizer.train(["one two"] * 3, vocab_size=270).save(path / "bare.json")
    return path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(folder, mistake, monkeypatch, capsys):
    arguments, message = MISTAKES[mistake]
    monkeypatch.chdir(folder)
    assert main(["train", *arguments]) == 2
    shown = capsys.readouterr()
    told = [line for line in shown.err.splitlines() if "error" in line]
    assert shown.out == "" and len(told) == 1 and shown.err.splitlines()[-1] == told[0]
    assert told[0].startswith("glassformer: error: ") and message in told[0], told[0]


@pytest.mark.slow
def test_a_worker_s_mistake_is_one_line_too(tmp_path):
    config = training(tmp_path, workers=2)
    write_tsv(tmp_path / "train.tsv", [("一", "one"), ("二", "")])
    result = glassformer("train", write(tmp_path, config))
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.splitlines() == [
        f"glassformer: error: {tmp_path / 'train.tsv'}:3: the target is blank but the source is not; "
        "fill it in, or delete the line"
    ]


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_keeps_what_was_saved(tmp_path):
    """A limit on a file's size stands in for a full disk: the system refuses the write just as abruptly."""
    file = write(tmp_path, training(tmp_path))
    assert glassformer("train", file, "--set", "train.steps=2").returncode == 0
    before = {p: p.read_bytes() for p in (tmp_path / "run" / "last").rglob("*") if p.is_file()}
    assert max(map(len, before.values())) > 400_000
    result = glassformer("train", file, "--resume", preexec_fn=small_files)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    told = result.stderr.splitlines()[-1]
    assert told.startswith("glassformer: error: no space left on the disk while writing ") and "run" in told
    assert {p: p.read_bytes() for p in before} == before
    assert not [name for name in os.listdir(tmp_path / "run") if name.endswith((".tmp", ".old"))]
    assert glassformer("train", file, "--resume").returncode == 0


@pytest.mark.slow
def test_two_trainings_in_one_folder_are_refused(tmp_path):
    import fcntl

    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = glassformer("train", write(tmp_path, training(tmp_path)))
    assert result.returncode == 2 and "another training is writing here; choose another train.output" in result.stderr


@pytest.mark.slow
def test_torchrun_trains_unchanged(tmp_path):
    file = write(tmp_path, training(tmp_path, steps=4))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*command, "-m", "glassformer", "train", file], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert done.stderr.count("done:") == 1 and "2 process(es)" in done.stderr
    local = training(tmp_path, steps=4, workers=2, output=str(tmp_path / "local"))
    train(local)
    one, other = (load(tmp_path / name / "last").model.state_dict() for name in ("run", "local"))
    assert all((one[name] - other[name]).abs().max() < 1e-4 for name in one)


@pytest.mark.slow
def test_a_script_trains_at_its_top_level(tmp_path):
    file = write(tmp_path, training(tmp_path, steps=2, workers=2))
    script = tmp_path / "script.py"
    script.write_text(f"import glassformer as gf\nprint(gf.train({file!r}, {{'train.lr': 1e-3}}).step)\n")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout) == (0, "2\n"), result.stderr


def test_every_way_to_give_a_corpus_trains_on_the_same_pairs(tmp_path, capsys):
    config = training(tmp_path, steps=1)
    rows = pairs(6, seed=3)
    write_tsv(tmp_path / "a.tsv", rows[:2])
    lines = [f'{{"zh": "{zh}", "en": "{en}"}}\n' for zh, en in rows[2:4]]
    (tmp_path / "b.jsonl").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "c.zh").write_text("".join(f"{zh}\n" for zh, _ in rows[4:]), encoding="utf-8")
    (tmp_path / "c.en").write_text("".join(f"{en}\n" for _, en in rows[4:]), encoding="utf-8")
    files = [str(tmp_path / name) for name in ("a.tsv", "b.jsonl", "c.zh", "c.en")]
    config["tokenizer"] = {"vocab_size": 270}
    mixed = {**config, "data": {**config["data"], "train": [*files[:2], files[2:]]}}
    one = train({**mixed, "train": {**mixed["train"], "output": str(tmp_path / "mixed")}}).run
    write_tsv(tmp_path / "train.tsv", rows)
    other = train(config).run
    assert "6 sentence pairs to train on, 12 for dev" in capsys.readouterr().err
    name = "last/model.safetensors"
    assert (one / name).read_bytes() == (other / name).read_bytes()


@pytest.mark.slow
def test_it_learns_to_translate_digits_both_ways(tmp_path):
    config = training(
        tmp_path, steps=1200, batch_tokens=1200, lr=4e-3, warmup=60, schedule="linear", eval_every=600, save_every=1200
    )
    config["model"] = {"preset": "transformer-tiny", "dropout": 0.05, "d_model": 64, "order": "pre"}
    write_tsv(tmp_path / "train.tsv", pairs(1500))
    run = train(config).run
    translator, rows = load(run / "best"), pairs(60, seed=9)
    for way, goal in ((0, "en"), (1, "zh")):
        found = translator.translate([row[way] for row in rows], to=goal, beam_size=2)
        assert corpus_bleu(found, [row[1 - way] for row in rows], goal) > 90
    names = {"config.yaml", "best", "last", "log.jsonl", "report.md", "tensorboard", "step-1200"}
    assert names <= set(os.listdir(run)) and os.listdir(run / "tensorboard")


def test_every_recipe_is_a_whole_config_that_says_what_it_reached(repository, monkeypatch):
    monkeypatch.chdir(repository)
    recipes = sorted(Path("recipes").glob("*.yaml"))
    assert len(recipes) >= 8
    for recipe in recipes:
        config = load_config(recipe)
        assert (config.objective or "from" in config.model) and config.train.output == f"runs/{recipe.stem}"
        assert "Reached" in recipe.read_text(encoding="utf-8").split("model:")[0], recipe


def test_numbers_are_said_as_they_are_read(repository):
    import runpy

    recipe = runpy.run_path(str(repository / "recipes/numbers.py"))
    values = {word: value for value, word in enumerate(recipe["ONES"])}
    values |= {word: 10 * value for value, word in enumerate(recipe["TENS"], 2)}
    for number in [*range(1200), 20_000, 342_005, 560_019, 999_999, 100_100]:
        total = group = 0
        for word in recipe["words"](number).replace("-", " ").replace(" and ", " ").split():
            if word == "thousand":
                total, group = 1000 * group, 0
            else:
                group = group * 100 if word == "hundred" else group + values[word]
        assert total + group == number


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


STARTS = """
import multiprocessing, pathlib, time
from glassformer.train import launch
context = multiprocessing.get_context("spawn")
workers = [context.Process(target=time.sleep, args=(60,), daemon=True) for _ in range(2)]
with launch._private_start():
    for worker in workers:
        worker.start()
for worker in workers:
    status = pathlib.Path(f"/proc/{worker.pid}/status").read_text()
    print(int(status.split("SigBlk:")[1].split()[0], 16))
    worker.kill()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads masks of signals from /proc")
def test_a_worker_hears_no_signal_from_its_first_instruction_on():
    told = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, check=True, timeout=120)
    wanted = (1 << signal.SIGINT - 1) | (1 << signal.SIGTERM - 1)
    assert [int(mask) & wanted for mask in told.stdout.split()] == [wanted] * 2


def alive(group: int) -> list[str]:
    """Processes of a group that run, by what /proc tells of them behind their names: state, parent, group."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its = file.read_text().rpartition(")")[2].split()[:3]
            if int(its) == group and state != "Z":
                found.append(str(file))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the process tree from /proc")
@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_while_a_run_starts_ends_it_with_one_line(tmp_path, number, code, said, workers):
    """To the whole group, as a terminal sends it: no worker may die of it by itself, and none may be left."""
    file = write(tmp_path, training(tmp_path, workers=workers))
    command = [sys.executable, "-m", "glassformer", "train", file]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as run:
        deadline = time.monotonic() + 120
        started = (tmp_path / "run/.lock").exists if workers == 1 else lambda: len(children(run.pid)) > workers
        # The workers, and beside them what tracks their shared memory.
        while not started() and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.7 * (workers > 1))  # so that they are importing what they need
        os.killpg(run.pid, number)
        err = run.communicate(timeout=60)[1]
    lines = [line for line in err.splitlines() if line and not line.startswith(("learn", "read"))]
    assert (run.returncode, lines[-1]) == (code, f"glassformer: {said}") and "Traceback" not in err, err
    deadline = time.monotonic() + 20
    while alive(run.pid) and time.monotonic() < deadline:  # what tracks shared memory ends by itself
        time.sleep(0.05)
    assert alive(run.pid) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_group_of_a_run_saves_and_ends_it(tmp_path, number, code):
    file = write(tmp_path, training(tmp_path, workers=2, steps=100_000, log_every=1))
    command = [sys.executable, "-m", "glassformer", "train", file]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith("step"):
                break
        os.killpg(run.pid, number)
        err = run.communicate(timeout=120)[1]
    assert run.returncode == code and "Traceback" not in err and err.count("stopping after this step") == 1, err
    assert (tmp_path / "run/last/model.safetensors").exists() and "--resume goes on" in err
