"""Mode "jit" among others: threads, many units of a class, and a process that is as before."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref

import pytest
import torch
from jit_units import Make, Mlp, assert_near, build_jit

import tt_core as tt

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_grad")]


def test_threads(make: Make) -> None:
    """Four threads at once get their own results."""
    model = Mlp().eval()
    built = build_jit(make(model, tt.Call(torch.randn(4, 8))))
    inputs = [torch.randn(4, 8) for _ in range(4)]
    expected = [model(x) for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        with torch.no_grad():
            results = [built.call(inputs[index]) for _ in range(100)]
        wrong.extend(index for result in results if not torch.allclose(result, expected[index], atol=1e-5))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_many_units_of_one_class(make: Make) -> None:
    """More units of a class than Dynamo's limit of 8: every one keeps its own program."""
    models = [Mlp().eval() for _ in range(10)]
    x = torch.randn(4, 8)
    builts = [build_jit(make(model, tt.Call(x))) for model in models]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model, built in zip(models, builts, strict=True):
            assert_near(built.call(x), model(x))


def test_nothing_is_left_behind(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """The module, Dynamo's and Inductor's configuration and other people's programs are as before; no output."""
    import torch._dynamo
    import torch._inductor.config

    theirs = torch.compile(lambda x: x.sin(), backend="eager")
    theirs(torch.randn(2))
    model, x = Mlp().eval(), torch.randn(4, 8)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    configs = torch._dynamo.config.get_config_copy(), torch._inductor.config.get_config_copy()
    built = build_jit(make(model, tt.Call(x)))
    built.close()
    assert (torch._dynamo.config.get_config_copy(), torch._inductor.config.get_config_copy()) == configs
    after = {name: dict(vars(module)) for name, module in model.named_modules()}
    assert after == before
    assert theirs(torch.randn(2)).shape == (2,)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(tt.TTError, match="closed"):
        built.call(x)
    gone = weakref.ref(model)
    del model, before, after
    gc.collect()
    assert gone() is None
