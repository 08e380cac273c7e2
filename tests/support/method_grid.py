"""Cells of the grid of methods and settings, see `docs/method_grid.py`, that tests train."""

from __future__ import annotations

from docs.method_grid import SETTINGS
from fedflat.methods import all_methods
from support.effort import COVERING, chosen

NAMED = {setting.title: setting for setting in SETTINGS}
# By their derivation, which the specification of each method gives: a mean over clients of what is not the model.
EQUAL_WEIGHTS = ("FedDyn", "FedGAMMA", "FedLESAM_D", "FedLESAM_S", "FedMoSWA", "FedSMOO", "FedSpeed", "FedTOGA",
                 "FedWMSAM", "Scaffold")  # fmt: skip
REFUSED = {(name, "weights") for name in EQUAL_WEIGHTS} | {
    ("Local", "SWA"), ("SWA", "SWA"), ("Local", "guard"), ("Centralised", "guard"),
    ("Local", "compress"), ("Centralised", "compress"),
    ("Local", "averaged"), ("Local", "keep"), ("Centralised", "local"), ("Centralised", "keep"),
    ("Ditto", "AdamW"), ("Ditto", "averaged"), ("Ditto", "local"), ("Ditto", "keep"),
    ("FedRep", "AdamW"),
}  # fmt: skip

ALL = [(name, title) for name in all_methods() for title in NAMED if (name, title) not in REFUSED]
_COVERING = [(i + j, (name, title)) for i, name in enumerate(COVERING.values()) for j, title in enumerate(NAMED)]
# Every setting with several of the methods that differ in what an engine must do, each of those with some settings.
CELLS = chosen([cell for place, cell in _COVERING if place % 4 == 0 and cell in ALL], ALL)
# Every setting with one of those methods: for what takes longer.
_IN_TURNS = list(COVERING.values()) * 3
FEW = chosen(
    [next((name, title) for name in _IN_TURNS[i:] if (name, title) in ALL) for i, title in enumerate(NAMED)], ALL
)
