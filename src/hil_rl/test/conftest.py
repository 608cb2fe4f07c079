"""Settings of the learning library's tests."""

import torch

# Threads that wait for each other on a busy machine make small products a hundred times slower.
torch.set_num_threads(1)
