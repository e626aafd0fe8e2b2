"""Writes the built-in sample data `inspections`: long reports of inspections, and what the inspector decided.

    python recipes/write_inspections.py FOLDER

The texts are made up and put together at random: what was looked at, and somewhere in the middle two sentences that
tell the decision. The beginning and the end say nothing about it, so that a model must read the whole report.
"""

import csv
import random
import sys
from collections.abc import Sequence
from pathlib import Path


def listed(text: str) -> list[str]:
    """The items of a text that are separated by |."""
    return text.replace("\n", " ").split("|")


SIZES = {"train": 120, "dev": 60}
VERDICTS = ("passed", "repair", "closed")
PLACES = listed(
    """the swimming pool on Mill Road|the kitchen of the Lindenhof hotel|the playground behind the town hall|the
footbridge at Weir Lane|the sports hall of the Northgate school|the cable car at Sunny Peak|the bakery at the
old station|the climbing wall in the youth centre|the car park under the theatre|the ferry landing at Green
Point|the greenhouse of the botanical garden|the dairy at Upper Farm|the ice rink by the river|the library annex
on King Street|the sawmill near Ashford|the camp site at Lake Morrow|the brewery cellar in Hope Street|the bus
depot on the ring road|the observatory on Fox Hill|the laundry of the district hospital"""
)
PEOPLE = listed(
    """Ms Okafor|Mr Lindqvist|Ms Brandt|Mr Sato|Ms Pereira|Mr Haddad|Ms Novak|Mr Quinn|Ms Adeyemi|Mr Castellano"""
)
TIMES = listed(
    """shortly after eight|at a quarter past nine|around ten|just before noon|early in the afternoon|at half past
two|towards four o'clock"""
)
WEATHER = listed(
    """It had rained during the night|The morning was dry and cold|A light wind came from the west|The sky was
overcast|It was warm for the season|There was fog until ten"""
)
PARTS = listed(
    """the main entrance|the emergency lighting|the drainage channel|the staff room|the left handrail|the storage
rack|the ventilation duct|the electrical cabinet|the outer fence|the first aid box|the water meter|the lift
shaft|the tiled floor|the rear window|the delivery ramp|the boiler|the fire door|the notice board|the row of
lockers|the cleaning cupboard|the gas connection|the roof gutter|the cable tray|the changing room|the ticket
machine"""
)
STATES = listed(
    """was looked at from both sides|was photographed for the file|was measured twice|was opened by the caretaker|was
compared with the drawings of last year|was described in the log book|was free of loose objects|had been painted
in spring|had a label with the date of the last service|carried the number that is given in the list|was within
reach without a ladder|was wiped dry before the test"""
)
REMARKS = listed(
    """The values are listed in the appendix|Two photographs were taken|The reading was noted on the sheet|Nobody was
present at that time|The caretaker explained how it is used|The manual was on the shelf|The previous report
mentions it too|A copy of the certificate was handed over|The noise level was normal for a building of this
age|It took about ten minutes|The staff asked when the report would arrive|The same supplier delivered the spare
parts"""
)
OPENINGS = [
    "{person} visited {place} {time}. {weather}, and the visit began with a walk around the site.",
    "This report describes the visit to {place}. {person} arrived {time}. {weather}.",
    "The regular inspection of {place} was carried out by {person}, who started {time}. {weather}.",
    "Report on {place}, written by {person}. The visit began {time}. {weather}.",
]
MIDDLES = [
    "{Part} {state}. {remark}.",
    "Next, {part} {state}, and {part2} {state2}.",
    "{remark}. After that {part} {state}.",
    "{person} asked about {part}; it {state}.",
    "{Part} and {part2} were visited in turn. {remark}.",
    "In the log book there is an entry about {part}, which {state}. {remark}.",
]
ENDINGS = [
    "The visit ended with a short talk in the office. The next one is planned for the coming year.",
    "A copy of this report goes to the owner and to the district office.",
    "The notes were signed by both sides. Questions can be sent to the district office.",
    "The appendix contains the list of measurements and the photographs.",
]
DECISIVE = {
    "passed": """Everything that was tested met the requirements|No defects were found that call for action|The
operator may continue as before|All the limits were kept with a good margin|We have no objections to the use of the
site|The result is satisfactory in every respect|Nothing stands in the way of a new permit|The safety devices
reacted exactly as they should|The certificate can be renewed without conditions|There is no need to come back
before the regular date|The brakes, valves and alarms worked at once|Visitors can use the site without concern""",
    "repair": """A cracked part has to be replaced within six weeks|The operator must mend the damaged section and
send us proof|Use may go on, but the worn bearings have to be exchanged soon|Several screws were loose and need to
be tightened by a specialist|The leak has to be sealed before the end of the month|We ask for new seals and a second
visit in spring|The corroded bracket should be renewed by a qualified company|Some defects were noted that must be
put right in due time|A repair order was issued for the faulty switch|The missing cover has to be fitted at the next
opportunity|The permit is extended only until the listed faults are corrected|Broken slats are to be exchanged, at
the owner's expense""",
    "closed": """The site was sealed off on the same day|Use is forbidden until further notice|There was an
immediate danger to life, so everyone was asked to leave|The operating permit was withdrawn on the spot|We shut down
the plant and put up barriers|Nobody may enter before a structural engineer has agreed|The supports are about to
give way, which leaves no choice but to stop all use|Because of the risk of collapse the doors were locked|The
police were asked to keep visitors away|Operation had to end at once|The authority prohibits any further use|A
serious hazard was found, and the public is no longer admitted""",
}


def sentences(verdict: str, part: str) -> list[str]:
    """The sentences that tell a decision; two thirds are those of the training reports, and dev has the others too."""
    known = listed(DECISIVE[verdict])
    return known[:8] if part == "train" else known[4:]


def filled(template: str, rng: random.Random) -> str:
    parts, states = rng.sample(PARTS, 2), rng.sample(STATES, 2)
    return template.format(
        person=rng.choice(PEOPLE),
        place=rng.choice(PLACES),
        time=rng.choice(TIMES),
        weather=rng.choice(WEATHER),
        part=parts[0],
        Part=parts[0][0].upper() + parts[0][1:],
        part2=parts[1],
        state=states[0],
        state2=states[1],
        remark=rng.choice(REMARKS),
    )


def report(verdict: str, part: str, rng: random.Random) -> str:
    """A report of 9 to 15 items, with the decision told twice between the fourth and the last but two."""
    items = [filled(rng.choice(MIDDLES), rng) for _ in range(rng.randint(9, 15))]
    for sentence in rng.sample(sentences(verdict, part), 2):
        items.insert(rng.randint(4, len(items) - 2), f"{sentence}.")
    return " ".join([filled(rng.choice(OPENINGS), rng), *items, rng.choice(ENDINGS)])


def write(folder: Path) -> None:
    for part, size in SIZES.items():
        rng = random.Random(f"inspections {part}")
        verdicts: Sequence[str] = [VERDICTS[i % len(VERDICTS)] for i in range(size)]
        rows = [(report(verdict, part, rng), verdict) for verdict in verdicts]
        rng.shuffle(rows)
        with (folder / f"inspections-{part}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("report", "decision"), *rows])


if __name__ == "__main__":
    write(Path(sys.argv[1]))
