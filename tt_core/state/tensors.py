"""One tensor's place, values and flags, and how they are put back."""

from __future__ import annotations

from typing import Any

import torch

from tt_core.state.bits import identical


class TensorState:
    """A tensor as it was: the very storage, a copy of the values, version, `requires_grad` and `grad`.

    Args:
        name: its dotted name.
        tensor: a tensor of any kind.
        like: an earlier copy of it, reused where it is still right.
    """

    def __init__(self, name: str, tensor: torch.Tensor, like: torch.Tensor | None = None) -> None:
        self.name, self.tensor = name, tensor
        with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            self.place = tensor.detach()
            self.copy = like if like is not None and identical(like, self.place) else self.place.clone()
        self.version = None if tensor.is_inference() else tensor._version
        self.requires_grad = tensor.requires_grad
        self.grad = tensor.grad if tensor.is_leaf else None

    def changed(self) -> bool:
        """Whether the values (or dtype, shape, device) differ from what they were."""
        return not identical(self.tensor.detach(), self.copy)

    def restore(self) -> None:
        """Puts back the storage that the tensor had, its values where they differ, and its flags."""
        tensor = self.tensor
        with torch.inference_mode(tensor.is_inference()), torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            if not self._in_place():
                tensor.data = self.place
            if not identical(tensor.detach(), self.copy):
                _write(tensor.data if _dense(tensor) and not tensor.is_inference() else tensor, self.copy)
            if self.version is not None and tensor._version != self.version:
                # the values are those of that version again: guards and autograd may go on trusting it
                torch._C._autograd._unsafe_set_version_counter((tensor,), (self.version,))
        if tensor.is_leaf:
            if tensor.requires_grad != self.requires_grad:
                tensor.requires_grad_(self.requires_grad)
            if tensor.grad is not self.grad:
                tensor.grad = self.grad

    def _in_place(self) -> bool:
        now, was = self.tensor, self.place
        if (now.dtype, now.shape, now.device, now.layout) != (was.dtype, was.shape, was.device, was.layout):
            return False
        return _address(now) == _address(was)


def _address(tensor: torch.Tensor) -> Any:
    return (tensor.data_ptr(), tensor.stride()) if _dense(tensor) and tensor.device.type != "meta" else None


def _dense(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested


def _write(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copies into the existing storage; elements that share memory (expanded tensors) are written once."""
    if _dense(target) and 0 in target.stride():
        once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target.stride())
        target, values = target[once], values[once]
    target.copy_(values)
