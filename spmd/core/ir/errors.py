"""What is raised where a value is read that is not there."""


class LostError(RuntimeError):
    """A tensor whose data is gone was read."""


class AbstractError(RuntimeError):
    """What has no data, or lies on devices that are not here, was read or run."""
