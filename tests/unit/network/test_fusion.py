"""Kernels read from TensorRT's log, and the bytes that they keep to themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.fusion import EngineKernel, compare_with_plan, fuse, grouped, kernels_of
from trtkit.network.record import LayerRecord, NetworkRecord, TensorRecord

if TYPE_CHECKING:
    from pathlib import Path

CODE = "__myl_MulSum_0x187dc33846fccb500e023668421bf662"
LIBRARY, GENERATED = (
    "Inputs: [ { Name: x, Dimensions: [1,3], Datatype: Half }], Constants: [], Outputs: [], "
    f"TacticName: {name}, StreamId: 0"
    for name in ("__myelin_CASK_STUB", CODE)
)
LOG = f"""[11/23/2026-23:46:08] [TRT] [V] Engine generation completed in 0.07 seconds.
[11/23/2026-23:46:08] [TRT] [V] Layers:
Name: __mye3011_0_myl0_0, LayerType: shape_call, Inputs: [], Outputs: [], TacticName: , StreamId: 0, Metadata:
Name: __myl_MulSum_myl0_1, LayerType: kgen, {GENERATED}, Metadata: <3><1><3>
Name: head, tail [profile 1]_myl1_0, LayerType: gemm, {LIBRARY}, Metadata: <12>
Name: __myl_Tran_myl1_1, LayerType: kgen, {LIBRARY}, Metadata:

I/O Tensors:
 Name: x, LayerType: none, Inputs: Metadata: <7>
"""


def test_kernels_are_those_of_the_log_by_profile() -> None:
    assert kernels_of(LOG) == (
        EngineKernel("__mye3011_0_myl0_0", "shape_call", 0, ()),
        EngineKernel("__myl_MulSum_myl0_1", "kgen", 0, (3, 1), CODE),
        EngineKernel("head, tail_myl1_0", "gemm", 1, (12,)),
        EngineKernel("__myl_Tran_myl1_1", "kgen", 1, ()),
    )
    assert [kernel.computes for kernel in kernels_of(LOG)] == [False, True, True, True]
    assert kernels_of("[11/23/2026-23:46:08] [TRT] [V] nothing") == ()


def tensor(name: str, size: int) -> TensorRecord:
    return TensorRecord(name, "fp32", (size,))


def layer(name: str, kind: str, reads: list[TensorRecord], gives: TensorRecord) -> LayerRecord:
    moved = 0 if kind == "CONSTANT" else sum(each.size_bytes for each in (*reads, gives))
    return LayerRecord(name, kind, tuple(reads), (gives,), {}, 0, moved)


X, W, A, B, C, D, E = (
    tensor(name, size) for name, size in zip("xwabcde", (1, 10, 100, 1000, 1000, 2000, 5), strict=True)
)
NETWORK = NetworkRecord(
    (X,),
    (E, B),
    {"x": (1,)},
    (
        layer("w", "CONSTANT", [], W),
        layer("blocks.0/first", "MATRIX_MULTIPLY", [X, W], A),
        layer("blocks.0/second", "ACTIVATION", [A], B),
        layer("view", "SHUFFLE", [B], C),
        layer("blocks.1/third", "UNARY", [C], D),
        layer("last", "REDUCE", [D, A], E),
    ),
)


def saved(*kernels: tuple[int, ...]) -> int:
    return (
        fuse("s", NETWORK, [EngineKernel(f"k{at}", "kgen", 0, layers) for at, layers in enumerate(kernels)]).bytes_saved
        // 4
    )


def test_a_tensor_is_saved_where_a_kernel_makes_and_reads_it() -> None:
    assert saved((1,), (2,), (4,), (5,)) == 0
    assert saved((1, 2), (4,), (5,)) == 100  # read once less, written still: the last layer reads it too
    assert saved((1,), (2, 4), (5,)) == 1000  # through the view; an output of the network is written
    assert saved((1,), (2,), (4, 5)) == 4000  # neither written nor read
    assert saved((1, 2, 4, 5)) == 3 * 100 + 1000 + 4000
    assert saved((1,), (1, 2), (4, 5)) == 100 + 4000  # a layer in two kernels


def test_kernels_that_do_not_compute_and_layers_that_are_gone_are_counted_apart() -> None:
    kernels = [
        EngineKernel("wait", "wait", 0, ()),
        EngineKernel("all", "gemm", 0, (1, 2, 4, 5)),
        EngineKernel("__myl_T_myl0_3", "kgen", 0, ()),
    ]
    fusion = fuse("s", NETWORK, kernels)
    assert [kernel.name for kernel in fusion.kernels] == ["all", "__myl_T_myl0_3"]
    assert fusion.absent == ("w", "view")
    assert fusion.bytes_apart == sum(each.bytes_moved for each in NETWORK.layers if each.name != "view")
    assert sum(kernel.bytes_saved for kernel in fusion.kernels) == fusion.bytes_saved
    assert [group.text for group in grouped(fusion)] == ["blocks.* (3 layers), last", "added by TensorRT: __myl_T"]


def test_generated_kernels_are_looked_up_in_the_plan(tmp_path: Path) -> None:
    other = CODE.replace("MulSum", "Tran")
    kernels = [EngineKernel(str(at), "kgen", 0, (at,), code) for at, code in enumerate((CODE, other, CODE, ""), 1)]
    plan = tmp_path / "m.plan"
    plan.write_bytes(b"\0name=" + CODE.encode() + b"\0")
    fusion = compare_with_plan(fuse("s", NETWORK, kernels), plan)
    assert (fusion.generated_kernels, fusion.confirmed_kernels) == (2, 1)
