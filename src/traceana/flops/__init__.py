"""Floating-point operations and compulsory bytes of operators, layers and algorithms.

One multiply-accumulate is two floating-point operations, here and in every table.
"""
