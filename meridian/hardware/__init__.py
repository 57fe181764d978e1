"""Facts about chips, interconnects and topologies: who states what, on which evidence, and where statements disagree.

Nothing here decides anything. A fact is a prior for those who do (compute index, cost model, recommendation); what was
measured on a member's own hardware goes before it.
"""

from meridian.hardware.catalogue import Catalogue, InvalidCatalogueError, standard
from meridian.hardware.chip import Chip
from meridian.hardware.facts import Fact, Statement, Tier
from meridian.hardware.names import Resolution

__all__ = ["Catalogue", "Chip", "Fact", "InvalidCatalogueError", "Resolution", "Statement", "Tier", "standard"]
