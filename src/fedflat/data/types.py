"""Names of array types that several packages share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]  # indices of clients or samples, or counts
Members = NDArray[np.int32 | np.int64]  # indices of samples
