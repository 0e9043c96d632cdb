"""The beta distribution with a given mean and deviation: how likely is a use below a threshold?

The regularised incomplete beta function is reckoned by its continued fraction (Numerical Recipes,
section 6.4), for many nodes at once.
"""

from __future__ import annotations

import math

import numpy as np

from bayplan.plugin.hookspecs import FloatColumn

__all__ = ["Fit", "incomplete_beta"]

_STEPS = 300
_CLOSE = 1e-14
_TINY = 1e-300
_VARIANCE = 0.99
"""The most variance, of the largest that a mean allows; beyond it there is no distribution."""
_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


class Fit:
    """Beta distributions with means and deviations, one a node; some may have none.

    :param means: 0 to 1; :param deviations: the standard deviations.
    """

    def __init__(self, means: FloatColumn, deviations: FloatColumn) -> None:
        largest = means * (1 - means)
        self._means = means
        self._sigma = np.minimum(deviations, np.sqrt(largest * _VARIANCE))
        self.exists = (means > 0) & (self._sigma > 0)
        variance = np.where(self.exists, self._sigma**2, 1.0)
        scale = np.where(self.exists, largest / variance - 1, 1.0)
        self._a = np.where(self.exists, means * scale, 1.0)
        self._b = np.where(self.exists, (1 - means) * scale, 1.0)

    def below(self, thresholds: FloatColumn) -> FloatColumn:
        """Return the probability of each node that no more than its threshold is used.

        Without a distribution it is 1 where the mean is not beyond the threshold, else 0.
        """
        certain = (self._means == 0) | (self._means <= thresholds)
        found = incomplete_beta(thresholds, self._a, self._b)
        probabilities: FloatColumn = np.where(self.exists, found, np.where(certain, 1.0, 0.0))
        return probabilities


def incomplete_beta(x: FloatColumn, a: FloatColumn, b: FloatColumn) -> FloatColumn:
    """Return the regularised incomplete beta function I_x(a, b), for x from 0 to 1."""
    inside = np.clip(x, _TINY, 1 - 1e-16)
    # The fraction converges fast on one side of the mean; the other one is its mirror image.
    mirrored = inside > (a + 1) / (a + b + 2)
    y = np.where(mirrored, 1 - inside, inside)
    p, q = np.where(mirrored, b, a), np.where(mirrored, a, b)
    log_front = _log_gamma(p + q) - _log_gamma(p) - _log_gamma(q) + p * np.log(y)
    front = np.exp(log_front + q * np.log1p(-y)) / p
    part = np.clip(front * _fraction(y, p, q), 0.0, 1.0)
    found = np.where(mirrored, 1 - part, part)
    values: FloatColumn = np.where(x <= 0, 0.0, np.where(x >= 1, 1.0, found))
    return values


def _fraction(x: FloatColumn, a: FloatColumn, b: FloatColumn) -> FloatColumn:
    """Return the continued fraction, by Lentz's method."""
    c = np.ones_like(x)
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d.copy()
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value = value * d * c
        if np.all(np.abs(d * c - 1) < _CLOSE):
            break
    return value


def _away_from_zero(values: FloatColumn) -> FloatColumn:
    found: FloatColumn = np.where(np.abs(values) < _TINY, _TINY, values)
    return found
