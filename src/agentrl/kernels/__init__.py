"""C++ for the decode step on a CPU, compiled for this machine at first use (a second, kept in the cache folder).

PyTorch's kernels are made for many tokens at once. With one token per sequence they reach a third of what the memory
can deliver, and the calls between them cost as much again. Where there is no compiler, or the model or the processor
is another, sampling goes on with PyTorch.
"""
