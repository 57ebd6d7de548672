"""For all tests of the runtime."""

import torch

# Their models are tiny and pytest runs several processes: more threads would only stand in each other's way.
torch.set_num_threads(1)
