"""Adopting: the caches that other tools left beside their pictures, taken over as they are.

`formats.py` knows the files of each tool, `search.py` finds them and checks that they fit their pictures. They become a
dataset of their own (`plan.py`), or the entries that a config wants (`fill.py`).
"""

from precook.integrations.adopt.plan import Adoption, AdoptionPlan, plan_adopt
from precook.integrations.adopt.search import LeftOut
from precook.integrations.adopted import STATUS

__all__ = ["STATUS", "Adoption", "AdoptionPlan", "LeftOut", "plan_adopt"]
