"""The complete state: what is taken, in which order it is put back, and what is refused or warned about."""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("msgspec")

import numpy  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

from loadsheet.errors import BadInput  # noqa: E402
from loadsheet.run import state as state_module  # noqa: E402
from loadsheet.run.decode import decode, entries_of, view  # noqa: E402
from loadsheet.run.encode import Encoder  # noqa: E402
from loadsheet.run.errors import BadCheckpoint, CannotKeep, RunWarning  # noqa: E402
from loadsheet.run.snapshot import State, same_bits  # noqa: E402
from loadsheet.run.state import Keeper  # noqa: E402

find_unkept = state_module.unkept


@pytest.fixture(autouse=True)
def not_searched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With all that pytest has loaded the search for what was not kept takes half a second.

    And two threads that wait for a busy machine's other core take longer than one.
    """
    monkeypatch.setattr(state_module, "unkept", lambda kept: [])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def searched(not_searched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search all the same; objects of other tests live on in tracebacks and caches, and do not count."""
    before = {id(thing): thing for thing in find_unkept({})}
    monkeypatch.setattr(
        state_module, "unkept", lambda kept: [thing for thing in find_unkept(kept) if id(thing) not in before]
    )


def read_back(keeper: Keeper, step: int = 7) -> State:
    """The state as a checkpoint would give it back."""
    snapshot = keeper.capture(step)
    data = bytearray(b"".join(bytes(chunk) for chunk in snapshot.chunks()))
    assert len(data) == snapshot.nbytes
    snapshot.release()
    return State(snapshot.document, torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0))


def round_trip(value: Any) -> Any:
    """One value through encoder, JSON and decoder."""
    import msgspec

    encoder = Encoder()
    plain = msgspec.json.decode(msgspec.json.encode(encoder.encode(value, "value")))
    entries, pieces = encoder.layout()
    table = entries_of([entry.plain() for entry in entries], [piece.nbytes for piece in pieces])
    copies = [piece.source.clone() for piece in pieces]
    return decode(plain, lambda index: view(copies[table[index].piece], table[index]))


def same(left: Any, right: Any) -> bool:
    """Equal in value and in every type, NaN to itself, zeros with their sign."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return same_bits(left, right) and left.stride() == right.stride()
    if isinstance(left, numpy.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return all(same(a, b) for a, b in zip(left.items(), right.items(), strict=True))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return left.hex() == right.hex()
    return bool(left == right)


# --- values -----------------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_values_come_back_with_their_types(value: Any) -> None:
    """Tuples stay tuples, keys keep their types, infinities and -0.0 survive."""
    assert same(value, round_trip(value)) is True


@pytest.mark.parametrize(
    "value",
    [
        {"$": "tensor", "index": 0},
        float("inf"),
        math.nan,
        -0.0,
        2**200,
        -(2**63) - 1,
        "\ud800",
        bytearray(b"\0\xff"),
        Counter({2: 1, 3: 4}),
        torch.float8_e4m3fn,
        torch.device("cuda:3"),
        torch.Size([2, 0]),
        numpy.float32(0.1),
        numpy.datetime64("2024-02-29"),
        numpy.arange(6, dtype=">u2").reshape(2, 3),
        numpy.array("text"),
        numpy.empty((0, 3)),
        random.Random(3).getstate(),
    ],
    ids=repr,
)
def test_rare_values_come_back(value: Any) -> None:
    """What JSON has no word for has a kind of its own, a dict that looks like one included."""
    back = round_trip(value)
    assert same(value, back) is True


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {2, 3}]}, "value.a.1"),
        ({"f": print}, "value.f"),
        ([object()], "value.0"),
        ({"s": torch.eye(2).to_sparse()}, "value.s"),
        ({"m": torch.empty(2, device="meta")}, "value.m"),
        ((numpy.array([None]),), "value.0"),
        ({"\ud800": 1}, "value"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_its_path(value: Any, where: str) -> None:
    """Refused when it is kept, never turned into text."""
    with pytest.raises(CannotKeep) as caught:
        round_trip(value)
    assert str(caught.value).startswith(f"keep {where}: got ")


def test_a_value_that_holds_itself_is_refused() -> None:
    """Cycles and bottomless nesting end with a message, not with the stack."""
    value: list[Any] = []
    value.append(value)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for bad in (value, deep):
        with pytest.raises(CannotKeep):
            round_trip(bad)


@pytest.mark.parametrize(
    "dtype", ["bool", "int64", "uint16", "bfloat16", "float8_e5m2", "complex64", "float64"]
)
def test_tensors_keep_dtype_strides_and_bits(dtype: str) -> None:
    """Every dtype, transposed, every other row, expanded, empty, and no dimension at all."""
    bits = torch.randint(0, 2 if dtype == "bool" else 256, (4, 6, 16), dtype=torch.uint8)
    base = bits.view(getattr(torch, dtype))
    for tensor in (
        base,
        base.transpose(0, 2),
        base[::2, 1:],
        base[0, 0, 0].expand(3, 2),
        base[:0],
        base[1, 2, 0],
    ):
        assert same(tensor, round_trip(tensor)) is True


def test_tensors_that_share_memory_still_do() -> None:
    """Tied weights, overlapping windows; a small window does not drag its storage along."""
    big = torch.arange(1_000_000, dtype=torch.float32)
    value = {"a": big[10:20], "b": big[15:25], "c": big[10:20].view(2, 5), "d": big[500:501]}
    back = round_trip(value)
    back["a"][5] = -1.0
    assert (float(back["b"][0]), float(back["c"][1, 0]), float(back["d"][0])) == (-1.0, -1.0, 500.0)
    encoder = Encoder()
    encoder.encode(value, "value")
    assert [piece.nbytes for piece in encoder.layout()[1]] == [15 * 4, 4]


# --- training resumes bit for bit -------------------------------------------------------------------

Things = dict[str, Any]


def build(optimizer: str, scheduler: str, dtype: torch.dtype = torch.float32, late: bool = False) -> Things:
    """A small model with dropout and batch norm, and what trains it."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1)).to(dtype)
    kinds: dict[str, Callable[[Any], Any]] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    }
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[1:].parameters()), "lr": 0.02}]
    things: Things = {"model": model, "optimizer": kinds[optimizer](groups)}
    if not late:
        things["scheduler"] = SCHEDULERS[scheduler](things["optimizer"])
    return things


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=30),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=9),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=3),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [3, 8, 8]),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=4), lr_scheduler.CosineAnnealingLR(o, 8)], milestones=[4]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, cooldown=1),
}


def train(things: Things, begin: int, end: int) -> list[str]:
    """Steps begin … end-1; the exact losses."""
    losses = []
    model, optimizer, scheduler = things["model"], things["optimizer"], things["scheduler"]
    dtype = next(model.parameters()).dtype
    for _ in range(begin, end):
        x = torch.randn(5, 6) + random.random() + numpy.random.random()
        loss = (model(x.to(dtype)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step(loss.item())
        else:
            with warnings.catch_warnings():  # SequentialLR passes on a deprecated argument
                warnings.simplefilter("ignore")
                scheduler.step()
    return losses


def resumed(make: Callable[[bool], Things], late: bool = False) -> tuple[list[str], list[str], bool]:
    """Losses of steps 5…11 without an interruption and with one, and whether all tensors are equal."""
    random.seed(2)
    numpy.random.seed(2)
    things = make(False)
    keeper = Keeper()
    keeper.keep(**things)
    keeper.restore(None)
    train(things, 0, 5)
    state = read_back(keeper, 5)
    whole = train(things, 5, 12)
    for value in things.values():
        value.__dict__["keep_alive"] = None  # nothing is shared with the second life
    random.seed(99)
    numpy.random.seed(99)
    again = make(late)
    torch.manual_seed(99)
    second = Keeper()
    second.keep(**again)
    before = state.step
    del things["scheduler"]  # of the first life: it must not be taken for one of the second
    expected = {name: tensor.clone() for name, tensor in things["model"].state_dict().items()}
    moments = things["optimizer"].state_dict()
    del keeper, things
    second.restore(state)
    assert before == 5
    if late:
        again["scheduler"] = SCHEDULERS[late_name](again["optimizer"])
        second.keep(scheduler=again["scheduler"])
    parts = train(again, 5, 12)
    live = again["model"].state_dict()
    equal = all(same_bits(expected[name], live[name]) for name in expected)
    return whole, parts, equal and same(moments, again["optimizer"].state_dict())


late_name = ""

PAIRS = [
    *product(["sgd", "adamw"], SCHEDULERS),
    *product(["adam", "fused", "rmsprop"], ["lambda", "onecycle"]),
    ("adagrad", "lambda"),
]


@pytest.mark.parametrize(("optimizer", "scheduler"), PAIRS)
def test_training_resumes_bit_for_bit(optimizer: str, scheduler: str) -> None:
    """Losses and every tensor of model and optimizer equal those of the run without an interruption."""
    whole, parts, equal = resumed(lambda late: build(optimizer, scheduler, late=late))
    assert (parts, equal) == (whole, True)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_scheduler_kept_after_the_restore_is_restored_too(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building it resets the learning rate (OneCycle its beta1 too); keeping it puts both back."""
    monkeypatch.setitem(globals(), "late_name", scheduler)
    whole, parts, equal = resumed(lambda late: build("adamw", scheduler, late=late), late=True)
    assert (parts, equal) == (whole, True)


@pytest.mark.usefixtures("searched")
@pytest.mark.parametrize("scheduler", ["lambda", "onecycle", "sequential"])
def test_a_scheduler_built_late_and_not_kept_is_refused(scheduler: str) -> None:
    """Before the first update, because that one would be wrong already."""
    things = build("adamw", scheduler)
    keeper = Keeper()
    keeper.keep(**things)
    train(things, 0, 5)
    state = read_back(keeper)
    again = build("adamw", scheduler, late=True)
    second = Keeper()
    second.keep(**again)
    del things, keeper
    second.restore(state)
    again["scheduler"] = SCHEDULERS[scheduler](again["optimizer"])
    with pytest.raises(BadInput, match="built after"):
        train(again, 5, 6)


def test_moments_keep_their_dtype() -> None:
    """`Optimizer.load_state_dict` would cast them to the dtype of the weights."""

    def make() -> tuple[Keeper, Any]:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.AdamW(model.parameters())
        keeper = Keeper()
        keeper.keep(model=model, optimizer=optimizer)
        return keeper, optimizer

    keeper, optimizer = make()
    for group in optimizer.param_groups:
        for weight in group["params"]:
            optimizer.state[weight] = {
                "step": torch.tensor(3.0),
                "exp_avg": torch.randn(weight.shape).bfloat16(),
                "exp_avg_sq": torch.rand(weight.shape, dtype=torch.float64),
            }
    state = read_back(keeper)
    expected = {k: v.clone() for k, v in optimizer.state_dict()["state"][0].items()}
    keeper, optimizer = make()
    keeper.restore(state)
    assert same(expected, optimizer.state_dict()["state"][0]) is True


def test_the_code_decides_how_the_optimizer_computes() -> None:
    """`load_state_dict` would take over the checkpoint's `fused`; here the change is told."""
    model = nn.Linear(3, 3)
    keeper = Keeper()
    keeper.keep(optimizer=torch.optim.AdamW(model.parameters(), fused=False), model=model)
    state = read_back(keeper)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    keeper = Keeper()
    keeper.keep(optimizer=optimizer, model=model)
    with pytest.warns(RunWarning, match="the code says fused=True"):
        keeper.restore(state)
    assert optimizer.param_groups[0]["fused"] is True


class Cached(nn.Module):
    """A module with what `state_dict` leaves out: a non-persistent buffer, one that grows, a tie."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("running", torch.zeros(3), persistent=False)
        self.register_buffer("cache", torch.zeros(1), persistent=False)
        self.frozen = nn.Linear(2, 2)


def test_modules_come_back_with_all_that_is_theirs() -> None:
    """Non-persistent buffers, one that grew, modes, frozen weights, gradients of zeros, ties."""
    model = Cached()
    keeper = Keeper()
    keeper.keep(model=model)
    model.running += 3
    model.register_buffer("cache", torch.arange(5.0), persistent=False)
    model.frozen.requires_grad_(False)
    model.head.eval()
    model.embedding.weight.grad = torch.zeros(4, 3)
    state = read_back(keeper)
    other = Cached()
    keeper = Keeper()
    keeper.keep(model=other)
    keeper.restore(state)
    assert (other.running.tolist(), other.cache.tolist()) == ([3.0] * 3, [0.0, 1.0, 2.0, 3.0, 4.0])
    assert (other.frozen.weight.requires_grad, other.head.training, other.training) == (False, False, True)
    assert other.head.weight is other.embedding.weight
    assert same_bits(other.head.weight, model.head.weight) is True
    assert other.embedding.weight.grad is not None
    assert "cache" not in other.state_dict()


def test_gradients_of_zeros_or_none_decide_what_decays() -> None:
    """A weight without gradient is left alone, one with a gradient of zeros decays: both are kept apart."""

    def make() -> tuple[Keeper, Any, Any]:
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
        keeper = Keeper()
        keeper.keep(model=model, optimizer=optimizer)
        return keeper, model, optimizer

    def step(model: Any, optimizer: Any, number: int) -> None:
        model[number % 2](torch.ones(2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    keeper, model, optimizer = make()
    for number in range(4):
        step(model, optimizer, number)
    state = read_back(keeper, 4)
    step(model, optimizer, 4)
    keeper, again, second = make()
    keeper.restore(state)
    step(again, second, state.step)
    assert all(same_bits(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)) is True


def test_all_random_states_come_back() -> None:
    """Python's, NumPy's, torch's, and every kept generator, NumPy's with their 128-bit numbers."""
    kept = {
        "a": torch.Generator().manual_seed(4),
        "b": numpy.random.default_rng(4),
        "c": random.Random(4),
        "d": numpy.random.RandomState(4),
        "e": numpy.random.Generator(numpy.random.Philox(4)),
    }
    keeper = Keeper()
    keeper.keep(**kept)

    def draw() -> list[str]:
        numbers = [random.random(), numpy.random.normal(), float(torch.rand(())), kept["c"].gauss(0, 1)]
        numbers += [
            float(torch.rand((), generator=kept["a"])),
            kept["b"].normal(),
            kept["d"].normal(),
            kept["e"].random(),
        ]
        return [float(number).hex() for number in numbers]

    draw()
    state = read_back(keeper)
    expected = draw()
    draw()
    keeper.restore(state)
    assert draw() == expected


def test_dicts_lists_tensors_and_own_objects_are_kept_in_place() -> None:
    """What `keep` is given is changed in place, so that the code's own names see it."""

    class Average:
        def __init__(self) -> None:
            self.total = 0.0

        def state_dict(self) -> dict[str, float]:
            return {"total": self.total}

        def load_state_dict(self, state: dict[str, float]) -> None:
            self.total = state["total"]

    best: dict[str, Any] = {"loss": math.inf, 3: (1, 2)}
    seen, average, ema = [1, 2], Average(), torch.ones(3)
    keeper = Keeper()
    keeper.keep(best=best, seen=seen, average=average, ema=ema)
    state = read_back(keeper)
    best["loss"], average.total = 0.0, 5.0
    seen.append(3)
    ema.zero_()
    keeper.restore(state)
    assert (best, seen, average.total, ema.tolist()) == (
        {"loss": math.inf, 3: (1, 2)},
        [1, 2],
        0.0,
        [1.0] * 3,
    )


def test_the_scaler_of_mixed_precision_is_kept() -> None:
    """A fresh one would start at 65536 and skip other steps."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    scaler.scale(torch.ones(()))
    scaler._growth_tracker.fill_(2)
    keeper = Keeper()
    keeper.keep(scaler=scaler)
    state = read_back(keeper)
    fresh = torch.amp.GradScaler("cpu", growth_interval=3)
    keeper = Keeper()
    keeper.keep(scaler=fresh)
    del scaler
    keeper.restore(state)
    assert (fresh.get_scale(), fresh.state_dict()["_growth_tracker"]) == (8.0, 2)


def test_an_ema_shares_nothing_and_comes_back() -> None:
    """AveragedModel counts its updates in a buffer."""
    model = nn.Linear(2, 2)
    ema = torch.optim.swa_utils.AveragedModel(model)
    ema.update_parameters(model)
    keeper = Keeper()
    keeper.keep(model=model, ema=ema)
    state = read_back(keeper)
    ema.update_parameters(model)
    keeper.restore(state)
    assert int(ema.n_averaged) == 1


def test_compiled_and_bare_modules_have_the_same_names() -> None:
    """`torch.compile` puts `_orig_mod.` before every name; a checkpoint does not know of it."""
    model = nn.Linear(2, 2)
    keeper = Keeper()
    keeper.keep(model=torch.compile(model, backend="eager"))
    state = read_back(keeper)
    assert list(state.value("model")["state"]) == ["weight", "bias"]


# --- warnings and refusals --------------------------------------------------------------------------


@pytest.mark.usefixtures("searched")
def test_what_lives_and_was_not_kept_is_named() -> None:
    """Scheduler, scaler, optimizer, averaged model, and the model whose weights a kept optimizer holds."""
    network = nn.Linear(2, 2)
    descent = torch.optim.SGD(network.parameters(), lr=0.1)
    decay = lr_scheduler.StepLR(descent, 3)
    scaler = torch.amp.GradScaler("cpu")
    other = torch.optim.Adam(nn.Linear(1, 1).parameters())
    off = torch.amp.GradScaler("cpu", enabled=False)
    keeper = Keeper()
    keeper.keep(descent=descent)
    with pytest.warns(RunWarning) as caught:
        keeper.restore(None)
    named = sorted(str(w.message).split(" lives")[0] for w in caught)
    assert named == ["`decay` (StepLR)", "`network` (Linear)", "`other` (Adam)", "`scaler` (GradScaler)"]
    assert (decay.last_epoch, scaler.is_enabled(), len(other.param_groups), off.is_enabled()) == (
        0,
        True,
        1,
        False,
    )


@pytest.mark.parametrize("value", [3, 2.5, "text", None, nn.Linear, torch.float32, {1, 2}], ids=repr)
def test_what_could_not_be_put_back_in_place_is_refused(value: Any) -> None:
    """A number is copied when it is passed; there is nothing to restore it into."""
    with pytest.raises(CannotKeep) as caught:
        Keeper().keep(best=value)
    assert str(caught.value).startswith("keep best: got ")


def test_names_are_given_once_and_in_time() -> None:
    """A second object of a name, and one that comes after the first step, are refused."""
    keeper = Keeper()
    first: dict[str, int] = {}
    keeper.keep(a=first)
    keeper.keep(a=first)
    with pytest.raises(BadInput, match="second object"):
        keeper.keep(a={})
    keeper.restore(None)
    keeper.seal()
    with pytest.raises(BadInput, match="after the first step"):
        keeper.keep(b={})


def changed(what: str) -> Keeper:
    """A keeper whose objects do not fit a checkpoint of `Linear(3, 2)` and its SGD."""
    model: nn.Module = nn.Linear(3, 2)
    if what == "shape":
        model = nn.Linear(4, 2)
    elif what == "dtype":
        model = model.double()
    elif what == "name":
        model = nn.Sequential(model)
    elif what == "bias":
        model = nn.Linear(3, 2, bias=False)
    weights = list(model.parameters())
    if what == "order":
        weights.reverse()
    kind = torch.optim.Adam if what == "class" else torch.optim.SGD
    keeper = Keeper()
    extra = {"ema": {}} if what == "more" else {}
    keeper.keep(model=model, optimizer=kind(weights, lr=0.1), **extra)
    return keeper


@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("shape", "restore model.weight: got shape (2, 4), expected (2, 3)"),
        ("dtype", "restore model.weight: got dtype torch.float64, expected torch.float32"),
        ("name", "restore model.weight: got no such name"),
        ("bias", "restore model.bias: got no such name"),
        ("order", "restore optimizer, group 0: got weight model.bias, expected model.weight"),
        ("class", "restore optimizer: got a Adam, expected the saved SGD"),
        ("more", "restore ema: got no such name in the checkpoint"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(what: str, where: str) -> None:
    """Before anything is trained on half of it, and by name."""
    state = read_back(changed("nothing"))
    with pytest.raises(BadCheckpoint) as caught:
        changed(what).restore(state)
    assert str(caught.value).startswith(where)


def test_an_object_that_loses_its_state_is_found_when_the_run_starts() -> None:
    """Everything is taken again after it was put back, and compared."""

    class Forgetful:
        def state_dict(self) -> dict[str, object]:
            return {"count": id(self)}

        def load_state_dict(self, state: object) -> None:
            pass

    keeper = Keeper()
    keeper.keep(counter=Forgetful())
    state = read_back(keeper)
    keeper = Keeper()
    keeper.keep(counter=Forgetful())
    with pytest.warns(RunWarning, match=r"counter\.count: got \d+, expected \d+"):
        keeper.restore(state)


# --- snapshots --------------------------------------------------------------------------------------


def test_a_snapshot_does_not_follow_the_training() -> None:
    """Neither tensors nor values: both are copied when it is taken."""
    model, facts = nn.Linear(3, 3), {"epoch": 1}
    keeper = Keeper()
    keeper.keep(model=model, facts=facts)
    expected = model.weight.detach().clone()
    snapshot = keeper.capture(3)
    with torch.no_grad():
        model.weight.zero_()
    facts["epoch"] = 2
    data = torch.frombuffer(bytearray(b"".join(map(bytes, snapshot.chunks()))), dtype=torch.uint8)
    state = State(snapshot.document, data)
    assert (same_bits(state.value("model")["state"]["weight"], expected), state.value("facts")) == (
        True,
        {"epoch": 1},
    )


def test_equal_states_are_equal_bytes() -> None:
    """Nothing of addresses, and no left-over bytes of a larger state, gets into a checkpoint."""
    keeper = Keeper()
    facts = {"a": torch.full((1001,), 7, dtype=torch.uint8), "b": torch.zeros(5)}
    keeper.keep(facts=facts)
    first = keeper.capture(1)
    expected = (first.document, b"".join(map(bytes, first.chunks())))
    first.release()
    facts["a"] = torch.full((1500,), 255, dtype=torch.uint8)
    keeper.capture(1).release()
    facts["a"] = torch.full((1001,), 7, dtype=torch.uint8)
    again = keeper.capture(1)
    assert (again.document, b"".join(map(bytes, again.chunks()))) == expected


def test_without_memory_the_save_is_streamed_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes, straight from the live tensors."""
    from loadsheet.run import buffer

    keeper = Keeper()
    keeper.keep(model=nn.Linear(50, 50), odd=torch.ones(3, dtype=torch.uint8), more=torch.rand(7))
    copied = keeper.capture(1)
    expected = b"".join(map(bytes, copied.chunks()))
    monkeypatch.setattr(buffer, "available_memory", lambda: 1000)
    fresh = Keeper()
    fresh.keep(**keeper.objects)
    with pytest.warns(RunWarning, match="training waits"):
        streamed = fresh.capture(1)
    assert (streamed.streamed, b"".join(map(bytes, streamed.chunks()))) == (True, expected)
    assert streamed.document == copied.document


def test_a_copy_with_other_bits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first snapshot of a process is compared with the live tensors."""
    from loadsheet.run import state

    def broken(pieces: Any, into: torch.Tensor, devices: Any) -> None:
        into.zero_()

    monkeypatch.setattr(state, "copy_pieces", broken)
    keeper = Keeper()
    keeper.keep(weights=torch.ones(4))
    with pytest.raises(CannotKeep, match="other bits"):
        keeper.capture(1)


def test_hostile_documents_are_refused() -> None:
    """Offsets outside the file, kinds that do not exist, numbers that are none."""
    import msgspec

    keeper = Keeper()
    keeper.keep(weights=torch.ones(4), facts={"a": 1})
    snapshot = keeper.capture(1)
    data = torch.frombuffer(bytearray(b"".join(map(bytes, snapshot.chunks()))), dtype=torch.uint8)
    good = msgspec.json.decode(snapshot.document)
    edits: list[Callable[[Any], Any]] = [
        lambda d: d.update(format=2),
        lambda d: d.update(pieces=[[1 << 40, 0]] * len(d["pieces"])),
        lambda d: d["tensors"][-1].__setitem__(1, 1 << 50),
        lambda d: d["tensors"][-1].__setitem__(1, 2),
        lambda d: d["tensors"][-1].__setitem__(2, "object"),
        lambda d: d["tensors"][-1].__setitem__(3, [1 << 61, 8]),
        lambda d: d["tensors"][-1].__setitem__(4, [-1]),
        lambda d: d["tree"]["objects"]["facts"].update(saved={"$": "call", "name": "os.system"}),
        lambda d: d["tree"]["objects"]["facts"].update(saved={"$": "tensor", "index": 99}),
        lambda d: d["tree"]["objects"]["facts"].update(saved={"$": "dict", "items": [[[], 1]]}),
        lambda d: d["tree"]["objects"]["facts"].update(saved={"$": "int", "hex": "zz"}),
        lambda d: d["tree"]["objects"]["facts"].update(saved={"$": "dtype", "name": "load"}),
        lambda d: d.pop("tree"),
    ]
    for number, edit in enumerate(edits):
        whole = msgspec.json.decode(msgspec.json.encode(good))
        edit(whole)
        with pytest.raises(BadCheckpoint) as caught:
            State(msgspec.json.encode(whole), data).value("facts")
        assert "checkpoint: got" in str(caught.value), number


def test_what_is_kept_no_more_is_named() -> None:
    """A checkpoint that holds more than the code keeps: when the first step begins."""
    keeper = Keeper()
    keeper.keep(a={}, b={})
    state = read_back(keeper)
    keeper = Keeper()
    keeper.keep(a={})
    keeper.restore(state)
    with pytest.warns(RunWarning, match=r"the checkpoint holds `b` \(data\)"):
        keeper.seal()


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.AdamW,
        lambda p: torch.optim.Adam(p, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.1),
        torch.optim.Adagrad,
    ],
)
def test_the_size_of_later_checkpoints_is_known_before_the_first_step(make: Callable[[Any], Any]) -> None:
    """The moments come with the first step; room for them must be there before."""
    model = nn.Linear(300, 200)
    optimizer = make(model.parameters())
    keeper = Keeper()
    keeper.keep(model=model, optimizer=optimizer)
    expected = keeper.expected_bytes(keeper.capture(0).nbytes)
    model(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    actual = keeper.capture(1).nbytes
    assert abs(actual - expected) <= 4096  # pages, and the counters of steps
    assert keeper.expected_bytes(actual) == actual
