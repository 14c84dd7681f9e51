"""The programs of the debugging posts: sums whose shapes grow or stay, their graph's text, and
special scalars.

XLA_NO_SPECIAL_SCALARS=1 python lazy_tensors.py --save saved.pt
"""

import sys

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

dev = xm.xla_device()


def num_compiles():
    compiled = met.metric_data("CompileTime")
    return 0 if compiled is None else compiled[0]


def dummy_step(x, y, loss, acc=False):
    z = torch.einsum("bs,st->bt", y, x)
    step_loss = z.sum().view(1)
    loss = torch.cat((loss, step_loss)) if acc else step_loss
    xm.mark_step()
    return loss


def measure(acc):
    x, y = torch.ones(8, 8).to(dev), torch.ones(4, 8).to(dev)
    loss = torch.zeros(1).to(dev)
    met.clear_all()
    for _ in range(6):
        loss = dummy_step(x, y, loss, acc=acc)
    return loss.cpu(), num_compiles()


def add_all(tensors_on_device):
    """Each pair is the same small program, whose number changes from 0 to 1 and on."""
    z = torch.zeros(8, device=dev)
    xm.mark_step()
    met.clear_all()
    for step, (x, y) in enumerate(tensors_on_device):
        z += (x + y) * step
        xm.mark_step()
    return z.cpu(), num_compiles()


y1 = torch.einsum("bs,st->bt", torch.ones(3, 3).to(dev), torch.ones(3, 8).to(dev))
text = torch_xla._XLAC._get_xla_tensors_text([y1])
hlo = torch_xla._XLAC._get_xla_tensors_hlo([y1])
pairs = [(torch.ones(8).to(dev), torch.ones(8).to(dev)) for _ in range(5)]
results = {
    "dynamic": measure(True),
    "static": measure(False),
    "sums": add_all(pairs),
    "text": text,
    "hlo": hlo,
}
torch.save({**results, "report": met.metrics_report()}, sys.argv[-1])
