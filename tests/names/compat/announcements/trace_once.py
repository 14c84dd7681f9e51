"""torch.compile by the backends of PyTorch/XLA 2.0: a resnet18 in evaluation, and a function that
trains it.

python trace_once.py --save saved.pt
"""

import sys

import torch
import torch_xla.core.xla_model as xm
from shapes import images, resnet18


def eval_model(loader):
    device = xm.xla_device()
    xla_resnet18 = resnet18().to(device)
    xla_resnet18.eval()
    dynamo_resnet18 = torch.compile(xla_resnet18, backend="torchxla_trace_once")
    with torch.no_grad():
        return [dynamo_resnet18(data.to(device)).cpu() for data, _ in loader]


def train_model(model, data, target):
    loss_fn = torch.nn.CrossEntropyLoss()
    pred = model(data)
    loss = loss_fn(pred, target)
    loss.backward()
    return pred


def train_model_main(loader):
    device = xm.xla_device()
    xla_resnet18 = resnet18().to(device)
    xla_resnet18.train()
    dynamo_train_model = torch.compile(train_model, backend="aot_torchxla_trace_once")
    outputs = [
        dynamo_train_model(xla_resnet18, data.to(device), target.to(device)).cpu()
        for data, target in loader
    ]
    return outputs, {name: param.grad.cpu() for name, param in xla_resnet18.named_parameters()}


if __name__ == "__main__":
    evaluated = eval_model(images(3, 64))
    trained, grads = train_model_main(images(2, 64))
    torch.save({"evaluated": evaluated, "trained": trained, "grads": grads}, sys.argv[-1])
