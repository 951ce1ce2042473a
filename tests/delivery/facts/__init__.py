"""The rows of the recorded facts as data: a direct request to an agent of the simulated cluster, and its result."""

from tests.delivery.facts.modern import modern
from tests.delivery.facts.old import arrives, exactly
from tests.delivery.facts.rendering import rendering

ROWS = [*arrives(), *exactly(), *modern(), *rendering()]
