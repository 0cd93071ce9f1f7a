"""A plugin that imports a package when it is declared, and sleeps when it is probed."""

import time

import tt_weighty  # noqa: F401  what a declaration must not do

import tt_core as tt


@tt.hookimpl
def tt_backends():
    return tt.Backend(name="heavy", devices={"*"}, fidelity=tt.Fidelity.EXACT, keeps=frozenset(tt.Keeps))


@tt.hookimpl
def tt_probe(device):
    time.sleep(2.5 if device.type == "cpu" else 0)
    return tt.Ready()


@tt.hookimpl
def tt_build(unit, calls):
    return tt.Built(call=unit.forward, weights=tt.Weights.LIVE, covers=calls.shapes)
