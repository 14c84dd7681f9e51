"""torch's process-wide state: the device's name, its kernels, and every patch of torch."""
