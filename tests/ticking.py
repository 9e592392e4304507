"""A clock whose every time can be told in advance."""


class Ticks:
    """Every look at the clock takes a second."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now
