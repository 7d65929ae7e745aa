"""The parts that every family is made of.

Shape suffixes: B batch, T query length, S key length, D model, H heads, K head size, F feed-forward, V vocabulary.
Masks are boolean; True means "may attend".
"""
