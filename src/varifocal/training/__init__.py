"""Training drafters: record a frozen target once, then fit anything `Trainable` to it."""
