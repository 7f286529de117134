"""Every routing passes the suite that users run on their own."""

from __future__ import annotations

import pytest

from capsroute import routing
from capsroute.testing import RoutingConformance


class TestSimilarity(RoutingConformance):
    routing = "similarity"


class TestPerChannelKernel(RoutingConformance):
    routing = staticmethod(routing.similarity(per_channel=True, components=2))


class TestLaplace(RoutingConformance):
    routing = staticmethod(routing.similarity(kernel="laplace"))


class TestCosine(RoutingConformance):
    routing = staticmethod(routing.similarity(kernel="cosine"))


class TestLinear(RoutingConformance):
    routing = staticmethod(routing.similarity(kernel="linear", iterations=1))


class TestConnectionist(RoutingConformance):
    routing = staticmethod(routing.connectionist(units=5, f_hidden=(4,), g_hidden=(6,)))


class TestEM(RoutingConformance):
    routing = "em"


class TestEMWindow(RoutingConformance):
    routing = staticmethod(routing.em(competition="window"))


class TestVariational(RoutingConformance):
    routing = "variational"


class TestVariationalWindow(RoutingConformance):
    routing = staticmethod(routing.variational(competition="window", kappa=0.5, degrees=4.0))


class TestDynamic(RoutingConformance):
    routing = "dynamic"


class TestEntropy(RoutingConformance):
    routing = "entropy"


class TestUniform(RoutingConformance):
    routing = "uniform"


@pytest.mark.parametrize("control", ["connectionist", "em", "variational", "dynamic"])
class TestUniformControls(RoutingConformance):
    @pytest.fixture(autouse=True)
    def _control(self, control):
        self.routing = routing.uniform(control=control)
