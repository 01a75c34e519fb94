"""The types of the arrays that search and models exchange."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]  #: ids, lengths, numbers of rows
Floats = NDArray[np.float32]  #: log-probabilities, weights
Bools = NDArray[np.bool_]
