"""Tensors that are no dense array: the device has none, and each way in says so in one sentence."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

X = torch.eye(4)
ROWS, COLUMNS, VALUES = torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2)

SPARSE: dict[str, Callable[[torch.Tensor], object]] = {
    "coo.to": lambda x: X.to_sparse().to("xla"),
    "coo.to with a dtype": lambda x: X.to_sparse().to("xla", torch.float64),
    "csr.to": lambda x: X.to_sparse_csr().to("xla"),
    "csc.to": lambda x: X.to_sparse_csc().to(x),
    "bsr.to": lambda x: X.to_sparse_bsr((2, 2)).to("xla"),
    "bsc.to": lambda x: X.to_sparse_bsc((2, 2)).to("xla"),
    "sparse_coo_tensor": lambda x: torch.sparse_coo_tensor(
        [[0, 1]], [1.0, 2.0], (4,), device="xla"
    ),
    "sparse_coo_tensor of nothing": lambda x: torch.sparse_coo_tensor(size=(4, 4), device="xla"),
    "sparse_coo_tensor of ours": lambda x: torch.sparse_coo_tensor(
        COLUMNS[None].to("xla"), VALUES.to("xla")
    ),
    "sparse_csr_tensor": lambda x: torch.sparse_csr_tensor(ROWS, COLUMNS, VALUES, device="xla"),
    "sparse_csr_tensor of ours": lambda x: torch.sparse_csr_tensor(
        ROWS.to("xla"), COLUMNS.to("xla"), VALUES.to("xla")
    ),
    "sparse_csc_tensor": lambda x: torch.sparse_csc_tensor(ROWS, COLUMNS, VALUES, device="xla"),
    "sparse_bsr_tensor": lambda x: torch.sparse_bsr_tensor(
        ROWS, COLUMNS, VALUES[:, None, None], device="xla"
    ),
    "to_sparse": lambda x: x.to_sparse(),
    "to_sparse(layout)": lambda x: x.to_sparse(layout=torch.sparse_csr),
    "to_sparse_csr": lambda x: x.to_sparse_csr(),
    "to_sparse_csc": lambda x: x.to_sparse_csc(),
    "to_sparse_bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "sparse_mask": lambda x: x.sparse_mask(X.to_sparse()),
    "zeros": lambda x: torch.zeros(2, 2, layout=torch.sparse_coo, device="xla"),
    "empty of csr": lambda x: torch.empty(2, 2, layout=torch.sparse_csr, device="xla"),
    "new_zeros": lambda x: x.new_zeros(2, 2, layout=torch.sparse_coo),
    "zeros_like": lambda x: torch.zeros_like(x, layout=torch.sparse_coo),
    "zeros_like of coo": lambda x: torch.zeros_like(X.to_sparse(), device="xla"),
    "coo @": lambda x: X.to_sparse() @ x,
    "@ csr": lambda x: x @ X.to_sparse_csr(),
    "+ coo": lambda x: x + X.to_sparse(),
    "* csr": lambda x: x * X.to_sparse_csr(),
    "sparse.mm": lambda x: torch.sparse.mm(X.to_sparse(), x),
    "sparse.addmm": lambda x: torch.sparse.addmm(x, X.to_sparse(), x),
    "sparse.softmax": lambda x: torch.sparse.softmax(x, 0),
    "values": lambda x: x.values(),
    "embedding": lambda x: (
        F.embedding(COLUMNS.to("xla"), x.requires_grad_(), sparse=True).sum().backward()
    ),
    "gather": lambda x: (
        torch.gather(x.requires_grad_(), 0, COLUMNS[None].to("xla"), sparse_grad=True)
        .sum()
        .backward()
    ),
}
NESTED: dict[str, Callable[[torch.Tensor], object]] = {
    "nested.to": lambda x: torch.nested.nested_tensor([X, X[:2]]).to("xla"),
    "nested_tensor": lambda x: torch.nested.nested_tensor([X, X[:2]], device="xla") * 2,
    "nested_tensor, jagged": lambda x: torch.nested.nested_tensor(
        [X, X[:2]], device="xla", layout=torch.jagged
    ),
    "nested_tensor of ours": lambda x: torch.nested.nested_tensor([x, x]),
    "as_nested_tensor": lambda x: torch.nested.as_nested_tensor([x, x]),
}
QUANTIZED: dict[str, Callable[[torch.Tensor], object]] = {
    "quantized.to": lambda x: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8).to("xla"),
    "per channel.to": lambda x: torch.quantize_per_channel(
        X, torch.ones(4), torch.zeros(4), 0, torch.qint8
    ).to("xla"),
    "quantize_per_tensor": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "quantize_per_channel": lambda x: torch.quantize_per_channel(
        x, torch.ones(4), torch.zeros(4), 0, torch.qint8
    ),
    "dynamic": lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),
    "empty": lambda x: torch.empty(3, dtype=torch.qint8, device="xla"),
    "+ quantized": lambda x: x + torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
    "dequantize": lambda x: x.dequantize(),
}


class TestRefused:
    """The error names the kind and what to do; torch's beta notices of such tensors are not
    ours."""

    @pytest.mark.filterwarnings(
        "ignore:Sparse CSR", "ignore:Sparse BSR", "ignore:Sparse CSC", "ignore:Sparse BSC"
    )
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested", "ignore:torch.quantize_per")
    @pytest.mark.parametrize(
        ("sentence", "ways"),
        [
            ("sparse tensors are not supported on xla: call `.to_dense()` first", SPARSE),
            (
                (
                    "nested tensors are not supported on xla: pad them with "
                    "`.to_padded_tensor(0.0)` first"
                ),
                NESTED,
            ),
            ("quantized tensors are not supported on xla: call `.dequantize()` first", QUANTIZED),
        ],
        ids=("sparse", "nested", "quantized"),
    )
    def test_sentence(
        self, sentence: str, ways: dict[str, Callable[[torch.Tensor], object]]
    ) -> None:
        said = {}
        for name, way in ways.items():
            try:
                said[name] = repr(way(X.to("xla")))
            except NotImplementedError as error:
                said[name] = str(error)
        assert {name: text for name, text in said.items() if not text.startswith(sentence)} == {}

    def test_what_to_do_works(self) -> None:
        dense = X.to_sparse().to_dense().to("xla") @ X.to("xla")
        assert torch.equal(dense.cpu(), X)
        with pytest.raises(NotImplementedError, match="mkldnn"):
            X.to("xla").to_mkldnn()
