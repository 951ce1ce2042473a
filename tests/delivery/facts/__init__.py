"""The rows of the recorded facts as data: a direct request to an agent of the world, and what came of it."""

from tests.delivery.facts.modern import modern
from tests.delivery.facts.old import arrives, exactly
from tests.delivery.facts.rendering import rendering

ROWS = [*arrives(), *exactly(), *modern(), *rendering()]
