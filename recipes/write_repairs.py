"""Writes the built-in sample data `repairs`: what has to be repaired, and what that costs in euros.

    python recipes/write_repairs.py FOLDER

The texts are made up and put together at random: a fault, up to four circumstances that change the cost, and remarks
that do not. The cost is that of the fault, times the factors of its extent and its parts, plus the euros of the hour
and the place, times noise of about 12 %.
"""

import csv
import random
import re
import sys
from pathlib import Path


def listed(text: str) -> list[str]:
    """The items of a text that are separated by |."""
    return " ".join(text.split()).split("|")


SIZES = {"train": 360, "dev": 120}
NOISE = 0.12
"""The standard deviation of the logarithm of the noise."""

FAULTS = [
    (int(cost), listed(texts.strip()))
    for cost, texts in re.findall(
        r"([0-9]+) ([^0-9]+)",
        """
    65 The bicycle has a flat rear tyre|A nail went through the bicycle tyre|My bike's back tyre lost all its air
    75 The brakes of the bicycle squeal and need new pads|The bike hardly brakes any more|Brake pads of the bicycle
        are worn down
    100 The gears of the bicycle jump and the chain is worn|Chain and sprockets of the bike are finished|The bike
        chain slips on every hill
    160 The motor of the electric bicycle cuts out|The drive of the e-bike stops after a minute|No help any more from
        the motor of the e-bike
    70 A button fell off the winter coat and its lining is torn|The lining of the coat has come apart|The coat needs a
        stitch or two inside
    65 The zip of the jacket is stuck|The jacket cannot be closed because the zip broke|A new zip for a rain jacket
    75 The soles of the walking boots are coming off|The boots need new soles|The sole of the left boot flaps
    95 The screen of the phone is cracked|The phone fell and its glass is broken|There are cracks all over the phone's
        display
    75 The battery of the phone is empty by noon|The phone needs a new battery|The phone no longer lasts half a day
    130 The laptop does not start since coffee ran into it|Tea was spilled on the keyboard of the laptop|The laptop
        got wet and stays dark
    90 The fan of the laptop is loud and it gets hot|The laptop overheats and switches itself off|The laptop's fan
        rattles
    85 The kitchen tap drips|Water runs from the tap even when it is closed|The tap over the sink no longer closes
    80 The drain of the shower is blocked|The water in the shower no longer runs off|The shower floods because its
        drain is clogged
    115 The toilet cistern runs day and night|The toilet does not flush any more|The flush of the toilet is broken
    150 A pipe under the bath leaks|There is a wet patch where the bath's pipe runs|Water seeps from a pipe behind the
        bath
    300 The gas boiler has failed and there is no hot water|The boiler is dead and the flat stays cold|Neither heating
        nor hot water: the boiler broke down
    105 The radiator in the hall stays cold|A radiator valve no longer opens|One radiator does not get warm
    115 The washing machine does not pump the water out|The pump of the washing machine has failed|After washing, the
        drum is still full of water
    140 The bearings of the washing machine roar|The drum of the washing machine grinds when it spins|The washing
        machine thunders during spinning
    110 The dishwasher leaves a puddle on the floor|The seal of the dishwasher door leaks|The dishwasher loses water
    135 The fridge no longer cools|Everything in the refrigerator is warm|The fridge runs all day but stays warm
    95 The oven does not get hot|The heating element of the oven has burnt out|The oven stays cold
    60 The toaster does not stay down|The toaster no longer heats on one side|The lever of the toaster does not catch
    80 The coffee machine drips and makes hardly any coffee|The coffee machine is blocked by lime|No pressure any more
        in the coffee machine
    85 The vacuum cleaner smells burnt and does not start|The motor of the vacuum cleaner smokes|The vacuum cleaner
        went off with a bang
    95 A socket in the bedroom sparks|A socket in the wall is loose and crackles|The bedroom socket has burn marks
    175 The fuse box trips every evening|The lights go out again and again because of the old fuse box|The fuse box
        needs new switches
    120 The front door lock is broken|The key breaks off in the lock of the front door|The lock of the house door no
        longer turns
    155 A window pane in the living room is shattered|A ball went through the living room window|The glass of the big
        window is broken
    105 The roller blind does not come down|The belt of the roller blind has torn|The blind of the balcony door hangs
        crooked
    235 Several roof tiles were blown off|The storm tore tiles from the roof|It rains into the attic because tiles are
        missing
    135 The gutter hangs down from the roof|The gutter overflows and has rusted through|A piece of the gutter came off
    170 The floor boards in the hall have swollen|Some boards of the parquet are loose|The wooden floor creaks and has
        a hole
    125 Tiles in the bathroom have come off the wall|A row of bathroom tiles fell down|The tiles above the bath are
        loose
    85 A leg of the dining table is loose|The table wobbles because a leg has split|The old table needs its leg glued
    185 The sofa's springs stick out and its cover is torn|The sofa must be upholstered again|The seat of the sofa has
        sunk in
    90 The exhaust of the car rattles|Something under the car rattles: the exhaust is loose|A bracket of the car's
        exhaust has rusted off
    200 The brake discs of the car are worn|The car needs new brake discs|The car shakes when it brakes
    270 The clutch of the car slips|The car revs but hardly moves: the clutch is finished|A new clutch for the car
    110 The battery of the car died|The car does not start in the morning|The starter only clicks when I turn the key
        of the car
    100 The lawn mower does not start after the winter|The engine of the mower stalls|The lawn mower coughs and stops
    70 The wall clock stands still|The clock loses an hour a day|The old clock no longer strikes
        """,
    )
]
"""What a fault costs without circumstances, and three wordings: two for each part, one of them for both."""

# Circumstances: their effect on the cost, and six wordings; the first four are for train, the last four for dev.
EXTENTS = {
    2.0: listed(
        """It is much worse than it looked at first|The damage has spread to the parts around it|Somebody tried to
        mend it before and made it worse|It has been like this for two years and everything near it suffered|Taking
        it apart showed more damage|By now its neighbours are damaged too"""
    ),
    0.5: listed(
        """Luckily it is only a small defect|We caught it early, so little has to be done|Half of the work is
        already done|Probably a screw and some grease are enough|It is the mildest form of this defect|Not much is
        needed to put it right"""
    ),
}
PARTS = {
    1.6: listed(
        """Only the maker's original parts, please|The spare part is rare and must be ordered abroad|The customer
        insists on the best quality there is|The model is old, so the part has to be made by hand|Parts for it are
        hard to get and dear|It should be the most durable part on the market"""
    ),
    0.6: listed(
        """I have already bought the spare part myself|A used part will do|The part is still under guarantee and
        costs nothing|We have a matching part left over from last time|The customer brings the new part along|The
        maker sends the part free of charge"""
    ),
}
HOURS = {
    120: listed(
        """It has to be done tonight|Please come on Sunday|It is an emergency|We cannot wait until Monday, so come
        at the weekend|Somebody must come at once, even at night|It must be done on the public holiday"""
    ),
    -40: listed(
        """There is no hurry at all|Any day next month is fine|Do it when you have nothing else to do|It can wait
        until the quiet season|Take your time|Whenever it suits you"""
    ),
}
PLACES = {
    100: listed(
        """The house is an hour's drive away|It is on the sixth floor and the lift is out of order|You reach the
        place only by ferry|It takes two people to carry it down the stairs|The farm lies far outside the town|The
        mountain hut can only be reached on foot"""
    ),
    -30: listed(
        """I can bring it to the workshop|It stands right next to your door|The customer hands it in and collects
        it|You are here on Thursday anyway|It is just across the road from you|It will be dropped off at your
        counter"""
    ),
}
REMARKS = listed(
    """Call me on my mobile|My neighbour has the key|I noticed it yesterday|It was a present from my aunt|We have
    used it every day|There is a dog in the house, but it is friendly|You were here last year|Please send the bill
    by post|The colour does not matter|My son found it|A friend recommended you|I am at home in the afternoons|We
    moved in last spring|Please tell me before you begin|I took a photo of it|It happened while we were away|The
    instructions have been lost|Let me know which day is right|My sister has the same one|It used to work well"""
)


def circumstance(
    kinds: dict[float, list[str]], part: str, nothing: float, rng: random.Random
) -> tuple[float, list[str]]:
    """In half of the rows one of the kinds, with one of its wordings; in the others nothing."""
    if rng.random() < 0.5:
        return nothing, []
    effect = rng.choice(list(kinds))
    return effect, [rng.choice(kinds[effect][:4] if part == "train" else kinds[effect][2:])]


def row(number: int, part: str, rng: random.Random) -> tuple[str, int]:
    cost, faults = FAULTS[number % len(FAULTS)]
    fault = rng.choice(faults[:2] if part == "train" else faults[1:])
    extent, extent_text = circumstance(EXTENTS, part, 1, rng)
    parts, parts_text = circumstance(PARTS, part, 1, rng)
    hour, hour_text = circumstance(HOURS, part, 0, rng)
    place, place_text = circumstance(PLACES, part, 0, rng)
    more = [*extent_text, *parts_text, *hour_text, *place_text, *rng.sample(REMARKS, rng.randint(0, 2))]
    rng.shuffle(more)
    expected = max(cost * extent * parts + hour + place, 20)
    return ". ".join([fault, *more]) + ".", round(expected * rng.lognormvariate(0, NOISE))


def write(folder: Path) -> None:
    written: set[str] = set()
    for part, size in SIZES.items():
        rng = random.Random(f"repairs {part}")
        rows: list[tuple[str, int]] = []
        while len(rows) < size:
            text, cost = row(len(rows), part, rng)
            if text not in written:
                written.add(text)
                rows.append((text, cost))
        rng.shuffle(rows)
        with (folder / f"repairs-{part}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("request", "cost"), *rows])


if __name__ == "__main__":
    write(Path(sys.argv[1]))
