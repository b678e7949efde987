"""What all tests share."""

import hypothesis
import torch

# The networks here are tiny and pytest-xdist fills the cores: a second thread would only wait for its turn.
torch.set_num_threads(1)

# The same examples every time: a run that fails can be run again. To look for new ones: --hypothesis-profile=search.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("fixed")
