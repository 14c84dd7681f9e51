"""Steps as programs: compiled, exported, and as torch.compile's backend."""
