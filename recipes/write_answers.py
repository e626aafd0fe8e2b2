"""Writes the built-in sample data `answers`: a question, an answer, and whether a source supports this answer.

    python recipes/write_answers.py FOLDER

The texts are made up and put together at random. Rows come in fours: one question, two answers, and for each of them a
source that supports it and one that supports the other. So every pair of question and answer is right as often as
wrong. Sources say the same as answers in other words, and in some of them the other answer is true of somebody else.
"""

import csv
import random
import sys
from pathlib import Path
from typing import NamedTuple

FOURS = {"train": 150, "dev": 40}
SENTENCES = 2
"""Sentences of a source; one is about the question."""
CROSSED = 0.2
"""How often another one says of somebody else what the other answer says."""


class Subject(NamedTuple):
    """What questions are about: {who}, and facts in the words of sources and of answers, three of each.

    The last wording of everything is in dev only.
    """

    questions: list[str]
    answers: list[str]
    who: dict[str, list[str]]
    facts: list[tuple[list[str], list[str]]]


def listed(text: str) -> list[str]:
    """The items of a text that are separated by |."""
    return " ".join(text.split()).split("|")


def subject(questions: str, answers: str, who: dict[str, list[str]], facts: str) -> Subject:
    """Facts are separated by empty lines; each has the words of sources, an equals sign, and the words of answers."""
    halves = [fact.split("=") for fact in facts.split("\n\n")]
    words = [(listed(source), listed(answer)) for source, answer in halves]
    return Subject(listed(questions), listed(answers), who, words)


PEOPLE = {
    "train": listed(
        "my aunt|our neighbour|his sister|her brother|the man upstairs|my old friend|the new tenant|your boss"
    ),
    "dev": listed("my uncle|the woman next door|your cousin|our guest"),
}
EVENTS = {
    "train": listed("the concert|the ferry trip|the football match|the lesson|the wedding|the film|the play|the party"),
    "dev": listed("the market|the bus tour|the meeting|the circus"),
}
"""The parts speak of different people and events, so that no text is in both."""

SUBJECTS = [
    subject(
        """What is {who}'s job?|What does {who} do for a living?|How does {who} earn money?|Which profession does {who}
        have?""",
        "{who} earns money by {words}|the work of {who} is {words}|{who} earns a living {words}",
        PEOPLE,
        """
        {who} gets up at three so that the rolls are ready by six|the loaves of {who} are sold out by
            nine|{who} kneads dough all night = making bread in a bakery|baking|as a baker

        {who} examines the sick from morning to evening|{who} writes prescriptions and listens to
            lungs|patients wait for {who} in a full room = treating patients as a doctor|medicine|as a
            physician

        {who} milks forty cows before breakfast|{who} brings in the hay with the tractor|{who} ploughs the
            fields in spring = running a farm|farming|as a farmer

        {who} lands large planes at night|{who} flies passengers across the ocean|{who} sits in the cockpit
            four days a week = flying aeroplanes|aviation|as a pilot

        {who} explains fractions to ten-year-olds|{who} corrects homework every evening|{who} stands at the
            blackboard in front of thirty pupils = teaching at a school|education|as a teacher
        """,
    ),
    subject(
        """Why did {who} begin late?|What delayed {who}?|What was the reason for the delay of {who}?|Why did we have to
        wait for {who}?""",
        "{who} began late {words}|{who} was delayed: {words}|the reason why {who} began late: {words}",
        EVENTS,
        """
        lightning and thunder kept everybody indoors before {who}|gusts tore down trees on the day of
            {who}|it poured for hours before {who} = because of a storm|the bad weather|wind and rain

        those in charge of {who} lay in bed with a high temperature|half of the people needed for {who} had
            the flu|a doctor was called before {who} = because of an illness|somebody was sick|people were
            unwell

        the staff of {who} refused to work until they got better pay|pickets stood in front of {who}|before
            {who} the union called for a walk-out = because of a strike|the workers protested|a labour
            dispute

        every lamp went out just before {who}|there was no current in the sockets for {who}|before {who} the
            whole street lay in the dark = because of a power cut|the electricity failed|no electric power

        a herd of cows blocked the way to {who}|sheep lay on the road to {who}|geese ran about in front of
            {who} = because of animals|some beasts were in the way|farm animals
        """,
    ),
    subject(
        """How did {who} spend Sunday?|What did {who} do at the weekend?|What kept {who} busy on Sunday?|What was
        {who} doing on the day off?""",
        "{who} spent Sunday {words}|{who} spent the day {words}|{who} was busy {words}",
        PEOPLE,
        """
        {who} was in the lake, though the water was still cold|{who} did forty lengths in the pool|{who}
            dived from the highest board = swimming|with a swim|in the water

        {who} had flour up to the elbows and filled the oven with cakes|{who} tried a recipe for plum
            tart|{who} put twelve biscuits on a tray = baking|with cakes and biscuits|making pastry

        {who} stood on the balcony with brushes and an easel|{who} finished a portrait in oil|{who} mixed
            blue and yellow on a palette = painting|with a picture|making art

        {who} moved the queen too early and lost in thirty moves|{who} gave up a bishop and a rook|{who} sat
            at the board until it was checkmate = playing chess|with a board game|over a game of chess

        {who} went down the slopes until the lifts closed|{who} waxed the boards and left for the snow|{who}
            raced down the mountain = skiing|with winter sports|on skis
        """,
    ),
    subject(
        """What did {who} get as a present?|What was in the parcel for {who}?|What was given to {who}?|What did we
        buy for {who}?""",
        "{who} got {words}|the present was {words}, and {who} liked it|{who} was given {words}",
        PEOPLE,
        """
        {who} can now walk in the rain without getting wet|when it pours, {who} opens it|it keeps {who} dry
            = an umbrella|something against the rain|a thing for wet days

        {who} tells the hour by it|{who} wears it on the wrist and is never late again|it ticks on the arm
            of {who} = a watch|something that shows the time|a timepiece

        {who} takes portraits with it|{who} photographs every bird|through its lens {who} sees the world in
            a new way = a camera|something to take pictures with|a thing for photographs

        {who} has hung it round the neck, and it glitters|its silver chain suits {who}|{who} wears its
            pearls to parties = a necklace|jewellery|something to adorn oneself

        {who} feeds it and takes it for a walk|it barks when {who} comes home|it brings {who} the stick back
            = a dog|a pet|an animal
        """,
    ),
]


def sentence(text: str, **words: str) -> str:
    text = text.format(**words)
    return f"{text[0].upper()}{text[1:]}."


def wording(of: list[str], part: str, rng: random.Random) -> int:
    return rng.randrange(len(of) - (part == "train"))


def source(about: Subject, who: str, fact: int, part: str, rng: random.Random) -> str:
    words = about.facts[fact][0]
    return sentence(words[wording(words, part, rng)], who=who)


def four(about: Subject, part: str, rng: random.Random) -> list[tuple[str, str, str, str]]:
    """One question, two answers, and for each of them a source that supports it and one that supports the other."""
    who, somebody = rng.sample(about.who[part], 2)
    facts = rng.sample(range(len(about.facts)), 2)
    question = about.questions[wording(about.questions, part, rng)].format(who=who)
    crossed = rng.random() < CROSSED
    rows = []
    for answer in facts:
        words = about.facts[answer][1]
        chosen = wording(words, part, rng)
        answered = sentence(about.answers[chosen], who=who, words=words[chosen])
        for fact in facts:
            told = [source(about, who, fact, part, rng)]
            if crossed:
                told.append(source(about, somebody, sum(facts) - fact, part, rng))
            others = [one for one in SUBJECTS if one is not about]
            for other in rng.sample(others, SENTENCES - 1 - crossed):
                told.append(source(other, rng.choice(other.who[part]), rng.randrange(len(other.facts)), part, rng))
            rng.shuffle(told)
            rows.append((question, answered, " ".join(told), "yes" if fact == answer else "no"))
    return rows


def write(folder: Path) -> None:
    for part, count in FOURS.items():
        rng = random.Random(f"answers {part}")
        rows = [row for i in range(count) for row in four(SUBJECTS[i % len(SUBJECTS)], part, rng)]
        rng.shuffle(rows)
        with (folder / f"answers-{part}.csv").open("w", encoding="utf-8", newline="") as file:
            header = ("question", "answer", "source", "supported")
            csv.writer(file, lineterminator="\n").writerows([header, *rows])


if __name__ == "__main__":
    write(Path(sys.argv[1]))
