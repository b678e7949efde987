"""What all tests share."""

import torch

# The networks here are tiny and pytest-xdist fills the cores: a second thread would only wait for its turn.
torch.set_num_threads(1)
