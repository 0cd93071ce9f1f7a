"""The constants of a model: which are the unit's own tensors, in whose memory they are, and what OpenVINO copies of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import tt_core as tt
from tt_openvino.ports import ov_types, shared

_LARGE = 1024
"""Bytes from which a constant is looked for among the unit's tensors."""
_PLACE = "tt_openvino.weight/"
"""Begins the names of inputs that stand for constants."""


def sources(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """For each large constant that is one of `tensors` bit for bit: the constant's name, and the tensor's."""
    sized: dict[tuple[int, ...], list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.nbytes >= _LARGE:
            sized.setdefault(tuple(tensor.shape), []).append(name)
    found: dict[str, str] = {}
    for constant in _constants(model):
        names = sized.get(tuple(constant.get_output_shape(0)), [])
        equal = (name for name in names if _equal(constant, tensors[name]))
        source = next(equal, None)
        if source is not None:
            found[constant.get_friendly_name()] = source
    return found


def hollow(model: Any, table: Mapping[str, str]) -> Any:
    """A copy of a model in which the constants of `table` are inputs: what is written of it has none of the unit's weights."""
    import openvino as ov

    made = model.clone()
    places = []
    for constant in _constants(made):
        if constant.get_friendly_name() in table:
            place = ov.op.Parameter(constant.get_element_type(), constant.get_output_partial_shape(0))
            places.append(_replaced(constant, place, _PLACE + constant.get_friendly_name()))
    made.add_parameters(places)
    return made


def filled(model: Any, table: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Puts the unit's tensors, in its own memory, in the places that `hollow` left. They must live as long as the model.

    Nobody looks at their values: the key of a cache's entry has told that they are equal.

    Raises:
        BuildRefusedError: a place is not what the unit has for it.
    """
    import openvino as ov

    places = {one.get_friendly_name(): one for one in model.get_parameters()}
    places = {name.removeprefix(_PLACE): one for name, one in places.items() if name.startswith(_PLACE)}
    if places.keys() != table.keys():
        raise tt.BuildRefusedError("its places for weights are others than was said")
    for name, place in places.items():
        tensor = tensors.get(table[name])
        if tensor is None or not _alike(place, tensor):
            raise tt.BuildRefusedError(f"the unit has no {table[name]!r} of that type and size")
        _replaced(place, ov.op.Constant(shared(tensor), shared_memory=True), name)
        model.remove_parameter(place)
    for constant in _constants(model):
        if constant.get_friendly_name() not in table:
            _replaced(constant, _copy(constant), constant.get_friendly_name())
    model.validate_nodes_and_infer_types()


def rebased(model: Any, table: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Lets a model that was read from a file use the unit's own memory for what is the unit's; copies the rest.

    But for bodies of loops nothing of the file's memory is used any more. The tensors must live as long as the model.

    Raises:
        BuildRefusedError: the unit has no such tensor, or other values.
    """
    import openvino as ov

    known = set(table)
    for constant in _constants(model):
        name = constant.get_friendly_name()
        if name in table:
            known.discard(name)
            tensor = tensors.get(table[name])
            if tensor is None:
                raise tt.BuildRefusedError(f"the unit has no {table[name]!r}")
            if not _equal(constant, tensor):
                raise tt.BuildRefusedError(f"the unit's {table[name]!r} is not the one in the file", "tune again")
            own = ov.op.Constant(shared(tensor), shared_memory=True)
        else:
            own = _copy(constant)
        _replaced(constant, own, name)
    if known:
        raise tt.BuildRefusedError(f"the model has no constant {min(known)!r}")


def _copy(constant: Any) -> Any:
    """The constant in memory of its own: that of a file goes."""
    import openvino as ov

    return ov.op.Constant(constant.get_tensor_view(), shared_memory=False)


def _replaced(old: Any, new: Any, name: str) -> Any:
    """Puts a node in the place of another, under a name."""
    new.set_friendly_name(name)
    old.output(0).replace(new.output(0))
    return new


def _constants(model: Any) -> list[Any]:
    return [op for op in model.get_ordered_ops() if op.get_type_name() == "Constant"]


def _equal(constant: Any, tensor: torch.Tensor) -> bool:
    """Whether a constant is a contiguous CPU tensor, bit for bit."""
    import numpy as np

    if not _alike(constant, tensor):
        return False
    data = constant.data.reshape(-1).view("uint8")
    if data.ctypes.data == tensor.data_ptr():
        return True
    return np.array_equal(data, tensor.detach().reshape(-1).view(torch.uint8).numpy())


def _alike(node: Any, tensor: torch.Tensor) -> bool:
    """Whether a contiguous CPU tensor has the type and the sizes of a node's output."""
    same = node.get_element_type() == ov_types().get(tensor.dtype) and node.get_output_partial_shape(0).is_static
    on_cpu = tensor.device.type == "cpu" and tensor.is_contiguous()
    return same and on_cpu and tuple(node.get_output_shape(0)) == tuple(tensor.shape)


def held_bytes(model: Any, tensors: Mapping[str, torch.Tensor], precision: str) -> int:
    """Memory of constants beyond the unit's own: OpenVINO repacks them, but for tables that it reads where they are."""
    own = {tensor.data_ptr() for tensor in tensors.values()}
    size = {"f32": 4, "bf16": 2, "f16": 2}[precision]
    total = 0
    for constant in _constants(model):
        kind, count = constant.get_element_type(), constant.data.size
        floats = kind.is_real()
        users = {port.get_node().get_type_name() for port in constant.output(0).get_target_inputs()}
        in_place = constant.data.ctypes.data in own and users == {"Gather"} and kind.size == size and floats
        if not in_place:
            total += count * (size if floats else kind.size)
    return total
