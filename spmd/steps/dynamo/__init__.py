"""torch.compile on the device: Dynamo sees plain tensors, and its graphs are recorded as ops of the
lazy graph."""
