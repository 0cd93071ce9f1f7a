"""Whether two tensors hold the same values: bit for bit, with any NaN equal to any NaN."""

from __future__ import annotations

import torch

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_INDICES = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""Methods that give the strided tensors of each sparse layout."""
_WIDE = 8
"""Bytes per element of the widest integer: contiguous tensors are compared in it."""


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have equal dtype, shape, device, layout and values.

    Args:
        a: a tensor of any layout on any device.
        b: another one.

    Returns:
        True for equal bits; a NaN equals every NaN, `0.0` does not equal `-0.0`. Meta tensors compare by shape.
    """
    if a is b:
        return True
    if (a.dtype, a.shape, a.device, a.layout) != (b.dtype, b.shape, b.device, b.layout):
        return False
    if a.device.type == "meta" or a.numel() == 0:
        return True
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        left, right = pieces(a.detach()), pieces(b.detach())
        return len(left) == len(right) and all(_same(x, y) for x, y in zip(left, right, strict=True))


def pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that a tensor of another layout or kind is made of."""
    if tensor.is_quantized:
        return [tensor.int_repr()]
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout in _INDICES:
        return [getattr(tensor, name)() for name in _INDICES[tensor.layout]]
    return [tensor if tensor.layout == torch.strided else tensor.to_dense()]


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    a, b = a.resolve_neg(), b.resolve_neg()
    if torch.equal(*_as_integers(a, b)):
        return True
    return a.is_floating_point() and _same_but_nan(a, b)


def _as_integers(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both tensors' memory as integers, as wide as their layout allows (half the time of a float comparison)."""
    size = a.element_size()
    if a.dtype not in {torch.bool, torch.uint8} and a.dim() and size in _INTEGERS:
        a, b = a.view(_INTEGERS[size]), b.view(_INTEGERS[size])
        if a.is_contiguous() and b.is_contiguous() and a.numel() * size % _WIDE == 0 and _aligned(a) and _aligned(b):
            a, b = a.view(-1).view(torch.int64), b.view(-1).view(torch.int64)
    elif a.is_floating_point():
        a, b = a.view(_INTEGERS[size]), b.view(_INTEGERS[size])
    return a, b


def _aligned(tensor: torch.Tensor) -> bool:
    return tensor.storage_offset() * tensor.element_size() % _WIDE == 0


def _same_but_nan(a: torch.Tensor, b: torch.Tensor) -> bool:
    differs = a.view(_INTEGERS[a.element_size()]) != b.view(_INTEGERS[b.element_size()])
    return bool((torch.isnan(a[differs].float()) & torch.isnan(b[differs].float())).all())
