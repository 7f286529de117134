"""Test errors that others published, in per cent, each with where the figure was read."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """A row of the paper's results table, or of its neighbours in the literature."""

    routing: str
    system: str
    weights: str
    mnist: str
    smallnorb: str
    source: str


PAPER = "the paper's results table"
PUBLISHED = (
    Published("similarity", "this paper", "86K", "1.0", "8.19", PAPER),
    Published("connectionist", "this paper", "86K", "0.53", "6.7", PAPER),
    Published("em", "Hinton et al. 2018, small", "68K", "–", "2.2", PAPER),
    Published("em", "Hinton et al. 2018", "310K", "–", "1.8", "google-research capsule_em README; 1.3 with 13 crops"),
    Published("em", "Gritzman 2019 (IBM), 2 iterations", "–", "–", "4.6", "its README; validates on test data"),
    Published("em", "Gritzman 2019 (IBM), 3 iterations", "–", "–", "6.3", PAPER),
    Published("em", "www0wwwjs1", "–", "0.9", "8.2", PAPER),
    Published("em", "yl-1993", "67K", "0.7", "10.0", "its README"),
    Published("variational", "De Sousa Ribeiro et al. 2020", "69K", "–", "1.3", "its README"),
    Published("dynamic", "Sabour et al. 2017", "6.8–8.2M", "0.25", "2.7", "their paper; ClusterRouting README"),
    Published("dynamic", "XifengGuo", "8.2M", "0.34", "–", "its README, mean of runs"),
    Published("cnn", "baseline of Hinton et al. 2018", "4.2M", "–", "5.2", "Mazzia et al. 2021, table 4"),
    Published("others", "Heinsen 2019", "272K", "–", "0.9", "its figure; selects on test data"),
    Published("others", "ClusterRouting", "–", "–", "1.57", "its README"),
)
