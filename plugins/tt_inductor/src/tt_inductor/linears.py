"""Linear layers in float32 on a CPU: oneDNN's product in the place of MKL's, where a race on this machine finds it faster.

Inductor takes MKL for them wherever torch has it, packed where weights are frozen and sizes do not move. On processors that
MKL is not tuned for, oneDNN takes a tenth to a third less, also with weights that are not packed.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from tt_inductor import products
from tt_inductor.products import Product

SETTING = "post_grad_custom_pre_pass"
_aten = torch.ops.aten
_library = torch.library.Library("tt_inductor", "DEF")
_library.define("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


@torch.library.impl(_library, "linear", "CPU")
def _linear_cpu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The linear layer of oneDNN, under a name of its own: Inductor takes the usual one for constant weights alone."""
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return result


@torch.library.impl(_library, "linear", "Meta")
def _linear_meta(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    del bias  # changes no size
    return x.new_empty(x.shape[0], weight.shape[0])


class Linears(CustomGraphPass):
    """A pass over one graph of Inductor's, before its own fusions: they know oneDNN's linear layer, and not MKL's.

    Attributes:
        seen: linear layers that oneDNN could take over, of the graphs so far.
        taken: those that it took over.
    """

    def __init__(self) -> None:
        self.seen = self.taken = 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Replaces the linear layers of `graph` that are faster with oneDNN."""
        for node in list(graph.nodes):
            found = _found(node)
            if found is None:
                continue
            self.seen += 1
            if products.faster(found.product):
                self.taken += 1
                _replace(graph, node, found)

    def notes(self) -> list[str]:
        """For the report; empty where none was taken over, or the program came whole from the compiler's cache."""
        return [f"oneDNN for {self.taken} of {self.seen} linear layers: raced here with MKL"] if self.taken else []

    def uuid(self) -> Any:
        """Names programs in the compiler's cache: what the pass does, and what its races depend on."""
        return (get_hash_for_files((__file__, str(products.__file__))), torch.get_num_threads())


def made() -> Linears | None:
    """The pass, for Inductor's setting `SETTING`; None where it has nothing to do, or somebody set a pass already."""
    import torch._inductor.config

    able = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled and torch.backends.mkl.is_available()
    if not able or getattr(torch._inductor.config, SETTING) is not None:
        return None
    return Linears()


@attrs.frozen(kw_only=True)
class _Linear:
    """A linear layer as a graph has it: `bias + x @ weight.t()`."""

    x: torch.fx.Node
    weight: torch.fx.Node
    bias: torch.fx.Node | None
    product: Product


def _found(node: torch.fx.Node) -> _Linear | None:
    """The linear layer that `node` is, if it is one that oneDNN could take over."""
    if node.op != "call_function" or node.kwargs:
        return None
    if str(node.target).startswith("mkl._mkl_linear"):
        x, _, weight, bias, _ = node.args
        return _linear(x, weight, bias, packed=True)
    if node.target not in {_aten.addmm.default, _aten.mm.default}:
        return None
    bias, x, turned = (None, *node.args) if node.target is _aten.mm.default else node.args
    if not isinstance(turned, torch.fx.Node) or turned.target is not _aten.permute.default or turned.args[1] != [1, 0]:
        return None
    return _linear(x, turned.args[0], bias, packed=False)


def _linear(x: Any, weight: Any, bias: Any, *, packed: bool) -> _Linear | None:
    if weight.op not in {"placeholder", "get_attr"}:
        return None
    values = [_value(one) for one in (x, weight, *([] if bias is None else [bias]))]
    if not all(_plain_matrix(value) for value in values[:2]) or not values[1].is_contiguous():
        return None
    rows, (outs, ins) = _hint(values[0].shape[0]), values[1].shape
    if bias is not None and (values[2].dtype, tuple(values[2].shape)) != (torch.float32, (outs,)):
        return None
    if rows is None or type(ins) is not int or type(outs) is not int or 0 in (rows, ins, outs):
        return None
    called = weight.op == "placeholder"
    product = Product(rows=rows, ins=ins, outs=outs, biased=bias is not None, packed=packed, called=called)
    return _Linear(x=x, weight=weight, bias=bias, product=product)


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else None


def _plain_matrix(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    rows_and_columns = 2
    return value.dim() == rows_and_columns and value.dtype == torch.float32 and value.device.type == "cpu"


def _hint(size: Any) -> int | None:
    """A size as it is in the call that is compiled for."""
    hint = size if isinstance(size, int) else getattr(size.node, "hint", None)
    return hint if isinstance(hint, int) else None


def _replace(graph: torch.fx.Graph, node: torch.fx.Node, found: _Linear) -> None:
    with graph.inserting_before(node):
        if found.product.called:
            new = graph.call_function(torch.ops.tt_inductor.linear.default, (found.x, found.weight, found.bias))
        else:
            weight = _packed(graph, found) if found.product.packed else found.weight
            onednn = torch.ops.mkldnn._linear_pointwise.default  # not every build of torch has it
            new = graph.call_function(onednn, (found.x, weight, found.bias, "none", [], ""))
    new.meta.update(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _packed(graph: torch.fx.Graph, found: _Linear) -> torch.fx.Node:
    """The weight packed as oneDNN wants it, as a constant of the graph."""
    module: Any = graph.owning_module
    name = f"_tt_packed_{found.weight.target}_{found.product.rows}"
    if not hasattr(module, name):
        weight = getattr(module, str(found.weight.target))
        module.register_buffer(name, torch.ops.mkldnn._reorder_linear_weight(weight, found.product.rows))
    node = graph.get_attr(name)
    node.meta["val"] = found.weight.meta["val"]
    return node
