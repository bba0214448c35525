"""A compact trainer whose runs are pure functions of their recipe."""
