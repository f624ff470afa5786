"""Pieces for one framework each; nothing else in chronosd imports them."""
