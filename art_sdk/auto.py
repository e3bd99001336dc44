"""Zero code: with `ART_AUTO=1` every Python process of this environment imports this as it starts.

`art_sdk_auto.pth`, beside this package, does that. Agent runs that no `@art.trajectory` is around then
become trajectories by themselves.
"""

from . import lifecycle as lifecycle  # whoever captures also drains
from .integrations import instrument

instrument()
