"""The relations of the invented world, and every wording they have in passages, questions and thoughts.

A relation leads from a subject type to an object: another entity type, or a literal kind from ``LITERALS``. Wordings in
``questions`` and ``phrases`` are used for training; those in ``other_questions`` and ``other_phrases`` appear only in the
``paraphrased`` variant. Placeholders: ``{S}``/``{s}`` the subject (name or pronoun, sentence start or not), ``{P}`` its
possessive at a sentence start, ``{o}`` the object, ``{x}`` the subject as a question refers to it.
"""

from __future__ import annotations

from dataclasses import dataclass

ENTITY_TYPES = (
    "person",
    "town",
    "river",
    "region",
    "company",
    "work",
    "festival",
    "species",
    "building",
    "ship",
    "team",
)

LITERALS: dict[str, tuple[str, ...]] = {
    "colour": ("red", "blue", "green", "yellow", "white", "black", "orange", "purple", "silver", "brown", "pink", "gold"),
    "material": ("granite", "brick", "oak", "limestone", "marble", "slate", "iron", "copper", "sandstone", "cedar"),
    "profession": (
        "weaver", "baker", "doctor", "painter", "lawyer", "farmer", "teacher", "sailor", "tailor", "chemist", "printer",
        "potter", "judge", "poet", "miner", "banker",
    ),
    "instrument": ("harp", "flute", "violin", "drum", "lute", "organ", "trumpet", "cello", "horn", "piano", "banjo"),
    "craft": (
        "bells", "lace", "cheese", "pottery", "candles", "boots", "honey", "rope", "baskets", "knives", "carpets", "soap",
    ),
    "fish": ("trout", "salmon", "pike", "eel", "perch", "carp", "sturgeon", "bream"),
    "good": ("salt", "wool", "timber", "tin", "wheat", "wine", "coal", "cotton", "amber", "tea", "sugar", "barley"),
    "animal": ("fox", "bear", "owl", "wolf", "deer", "otter", "swan", "hare", "lion", "badger", "eagle", "goat"),
    "product": (
        "clocks", "bicycles", "paper", "pianos", "glass", "shoes", "lamps", "maps", "buttons", "engines", "tiles",
        "umbrellas", "scissors", "kites",
    ),
    "genre": ("novel", "opera", "play", "painting", "ballet", "film", "poem", "song"),
    "month": ("March", "April", "May", "June", "July", "August", "September", "October", "November"),
    "food": ("plum cake", "onion soup", "roast duck", "apple pie", "fish stew", "rye bread", "pancakes", "dumplings"),
    "sport": ("rowing", "hockey", "cricket", "chess", "rugby", "tennis", "fencing", "football", "curling"),
}  # fmt: skip


@dataclass(frozen=True)
class Relation:
    """One functional relation: every subject has exactly one object."""

    key: str
    subject: str
    object: str  # an entity type, a key of LITERALS, or "year" | "length"
    facts: tuple[str, ...]
    questions: tuple[str, ...]
    other_questions: tuple[str, ...]
    phrases: tuple[str, ...]  # noun phrases for the object: "the founder of {x}"
    other_phrases: tuple[str, ...]
    words: str  # what a good query adds to the name

    @property
    def name(self) -> str:
        return f"{self.subject}.{self.key}"

    @property
    def leads_on(self) -> bool:
        """Whether the object is an entity, so that a longer chain can go through it."""
        return self.object in ENTITY_TYPES


RELATIONS: tuple[Relation, ...] = (
    # --- person
    Relation(
        "birthplace", "person", "town",
        ("{S} was born in {o}.", "{S} was born and raised in {o}.", "{P} birthplace was {o}.", "{S} came from {o}."),
        ("Where was {x} born?", "In which town was {x} born?", "Which town is the birthplace of {x}?"),
        ("What is the native town of {x}?", "Name the town {x} comes from."),
        ("the birthplace of {x}", "the town where {x} was born"),
        ("the native town of {x}", "the town that {x} comes from"),
        "born",
    ),
    Relation(
        "birth_year", "person", "year",
        ("{P} year of birth was {o}.", "{S} was born in {o}.", "The year {o} saw {p} birth."),
        ("In what year was {x} born?", "When was {x} born?", "What is the birth year of {x}?"),
        ("Give the year in which {x} came into the world.", "Which year of birth is recorded for {x}?"),
        ("the birth year of {x}", "the year when {x} was born"),
        (),
        "born year",
    ),
    Relation(
        "profession", "person", "profession",
        ("{S} worked as a {o}.", "{S} was a {o} by trade.", "{S} earned a living as a {o}."),
        ("What is the profession of {x}?", "What did {x} work as?", "What was the trade of {x}?"),
        ("How did {x} earn a living?", "Name the job that {x} had."),
        ("the profession of {x}", "the trade of {x}"),
        (),
        "profession",
    ),
    Relation(
        "instrument", "person", "instrument",
        ("{S} played the {o}.", "At home {s} played the {o}.", "{P} favourite instrument was the {o}."),
        ("Which instrument did {x} play?", "What instrument did {x} play?"),
        ("On what did {x} make music?", "Name the musical instrument of {x}."),
        ("the instrument of {x}", "the instrument that {x} played"),
        (),
        "instrument",
    ),
    Relation(
        "teacher", "person", "person",
        ("{S} was taught by {o}.", "{S} learned from {o}.", "{P} teacher was {o}."),
        ("Who taught {x}?", "Who was the teacher of {x}?"),
        ("From whom did {x} learn?", "Name the mentor of {x}."),
        ("the teacher of {x}", "the person who taught {x}"),
        ("the mentor of {x}", "the person from whom {x} learned"),
        "teacher",
    ),
    # --- town
    Relation(
        "region", "town", "region",
        ("{S} lies in {o}.", "{S} belongs to the region of {o}.", "{S} is part of {o}."),
        ("In which region is {x}?", "Which region does {x} belong to?"),
        ("Name the region around {x}.", "Of what region is {x} a part?"),
        ("the region of {x}", "the region where {x} lies"),
        ("the region around {x}",),
        "region",
    ),
    Relation(
        "river", "town", "river",
        ("{S} stands on {o}.", "{S} was built beside {o}.", "{o} runs through {s}."),
        ("Which river runs through {x}?", "On which river does {x} stand?"),
        ("Name the water that flows past {x}.", "Beside what river was {x} built?"),
        ("the river that runs through {x}", "the river of {x}"),
        ("the water that flows past {x}",),
        "river",
    ),
    Relation(
        "founded", "town", "year",
        ("{S} was founded in {o}.", "{S} dates from {o}.", "Settlers founded {s} in {o}."),
        ("In what year was {x} founded?", "When was {x} founded?"),
        ("From which year does {x} date?", "How far back does {x} go, in years of record?"),
        ("the founding year of {x}", "the year when {x} was founded"),
        (),
        "founded",
    ),
    Relation(
        "mayor", "town", "person",
        ("{P} mayor is {o}.", "The mayor is {o}.", "{o} serves as mayor."),
        ("Who is the mayor of {x}?", "Who serves as mayor of {x}?"),
        ("Who heads the council of {x}?", "Name the person who runs the town hall in {x}."),
        ("the mayor of {x}",),
        ("the head of the council of {x}",),
        "mayor",
    ),
    Relation(
        "craft", "town", "craft",
        ("{S} is known for its {o}.", "Local workshops make {o}.", "People there live from making {o}."),
        ("What is {x} known for?", "What do the workshops of {x} make?"),
        ("For which craft do people praise {x}?", "Name the thing that {x} is famous for."),
        ("the craft of {x}", "what {x} is known for"),
        (),
        "known for",
    ),
    # --- river
    Relation(
        "length", "river", "length",
        ("{S} is {o} long.", "{P} length is {o}.", "{S} runs for {o}."),
        ("How long is {x}?", "What is the length of {x}?"),
        ("Over what distance does {x} run?", "Give the extent of {x} from source to sea."),
        ("the length of {x}",),
        (),
        "long",
    ),
    Relation(
        "mouth", "river", "town",
        ("{S} meets the sea at {o}.", "{P} mouth is at {o}.", "{S} ends at {o}, by the sea."),
        ("At which town does {x} meet the sea?", "In which town is the mouth of {x}?"),
        ("Where does {x} end?", "Name the port in which {x} reaches salt water."),
        ("the town at the mouth of {x}", "the town where {x} meets the sea"),
        ("the port where {x} ends",),
        "mouth sea",
    ),
    Relation(
        "fish", "river", "fish",
        ("{P} waters are full of {o}.", "Anglers come for the {o}.", "{S} is rich in {o}."),
        ("Which fish is {x} known for?", "What fish do anglers find in {x}?"),
        ("What swims in {x} in great numbers?", "Name the catch that people seek in {x}."),
        ("the fish of {x}",),
        (),
        "fish",
    ),
    # --- region
    Relation(
        "capital", "region", "town",
        ("{P} capital is {o}.", "{S} is governed from {o}.", "The capital is {o}."),
        ("What is the capital of {x}?", "Which town is the capital of {x}?"),
        ("From which town is {x} governed?", "Name the seat of government in {x}."),
        ("the capital of {x}",),
        ("the seat of government in {x}",),
        "capital",
    ),
    Relation(
        "export", "region", "good",
        ("{S} sells {o} abroad.", "{P} main export is {o}.", "{S} exports {o}."),
        ("What does {x} export?", "What is the main export of {x}?"),
        ("Which good does {x} sell abroad?", "Name what traders buy from {x}."),
        ("the main export of {x}",),
        (),
        "export",
    ),
    Relation(
        "animal", "region", "animal",
        ("{P} flag shows a {o}.", "A {o} stands on the flag.", "The flag bears a {o}."),
        ("Which animal is on the flag of {x}?", "What animal does the flag of {x} show?"),
        ("What creature is the emblem of {x}?", "Name the beast on the banner of {x}."),
        ("the animal on the flag of {x}",),
        (),
        "flag animal",
    ),
    # --- company
    Relation(
        "founder", "company", "person",
        ("{S} was founded by {o}.", "{o} founded {s}.", "{P} founder was {o}."),
        ("Who founded {x}?", "Who was the founder of {x}?"),
        ("By whom was {x} set up?", "Name the person who started {x}."),
        ("the founder of {x}", "the person who founded {x}"),
        ("the person who set up {x}",),
        "founder",
    ),
    Relation(
        "seat", "company", "town",
        ("{S} is based in {o}.", "{P} head office is in {o}.", "{S} works from {o}."),
        ("Where is {x} based?", "In which town is {x} based?"),
        ("Name the town of {x}'s head office.", "Which town is home to the firm {x}?"),
        ("the town where {x} is based", "the home town of {x}"),
        ("the town with the head office of {x}",),
        "based",
    ),
    Relation(
        "founded", "company", "year",
        ("{S} opened in {o}.", "{S} was founded in {o}.", "{S} began in {o}."),
        ("In what year was {x} founded?", "When was {x} founded?"),
        ("Since which year has {x} existed?", "Give the opening year of {x}."),
        ("the founding year of {x}", "the year when {x} was founded"),
        (),
        "founded",
    ),
    Relation(
        "product", "company", "product",
        ("{S} makes {o}.", "{S} is a maker of {o}.", "{S} sells {o}."),
        ("What does {x} make?", "What is the product of {x}?"),
        ("Which goods leave the factory of {x}?", "Name what customers buy from {x}."),
        ("the product of {x}", "what {x} makes"),
        (),
        "makes",
    ),
    # --- work
    Relation(
        "author", "work", "person",
        ("{S} was created by {o}.", "{S} is by {o}.", "{P} author is {o}."),
        ("Who created {x}?", "Who is the author of {x}?"),
        ("By whose hand is {x}?", "Name the artist behind {x}."),
        ("the author of {x}", "the person who created {x}"),
        ("the artist behind {x}",),
        "author",
    ),
    Relation(
        "year", "work", "year",
        ("{S} appeared in {o}.", "{S} first came out in {o}.", "{S} was finished in {o}."),
        ("In what year did {x} appear?", "When did {x} come out?"),
        ("Which year saw the release of {x}?", "Give the date in years of {x}."),
        ("the year when {x} appeared",),
        (),
        "appeared year",
    ),
    Relation(
        "genre", "work", "genre",
        ("{S} is a {o}.", "{S} is a well known {o}.", "Critics call it a fine {o}."),
        ("What kind of work is {x}?", "Which kind of work is {x}?"),
        ("To what form of art does {x} belong?", "As what is {x} classed?"),
        ("the kind of work that {x} is",),
        (),
        "kind",
    ),
    Relation(
        "setting", "work", "town",
        ("{S} is set in {o}.", "{P} story takes place in {o}.", "{S} shows life in {o}."),
        ("Where is {x} set?", "In which town is {x} set?"),
        ("What town does the story of {x} take place in?", "Name the scene of {x}."),
        ("the town where {x} is set", "the setting of {x}"),
        ("the scene of {x}",),
        "set",
    ),
    # --- festival
    Relation(
        "town", "festival", "town",
        ("{S} is held in {o}.", "{S} takes place in {o}.", "{o} hosts {s}."),
        ("Where is {x} held?", "In which town does {x} take place?"),
        ("Which town hosts {x}?", "Name the place people go to for {x}."),
        ("the town where {x} is held", "the home of {x}"),
        ("the host of {x}",),
        "held",
    ),
    Relation(
        "month", "festival", "month",
        ("{S} is celebrated in {o}.", "{S} falls in {o}.", "Every {o} it draws crowds."),
        ("In which month is {x}?", "In what month is {x} celebrated?"),
        ("At what time of the year does {x} fall?", "Name the month of {x}."),
        ("the month of {x}",),
        (),
        "month",
    ),
    Relation(
        "founder", "festival", "person",
        ("{S} was started by {o}.", "{o} started {s}.", "{P} founder was {o}."),
        ("Who started {x}?", "Who was the founder of {x}?"),
        ("To whom does {x} owe its beginning?", "Name the person who first held {x}."),
        ("the founder of {x}", "the person who started {x}"),
        ("the person who first held {x}",),
        "started",
    ),
    Relation(
        "food", "festival", "food",
        ("Guests eat {o}.", "{P} traditional dish is {o}.", "{S} is famous for {o}."),
        ("What do guests eat at {x}?", "What is the traditional dish of {x}?"),
        ("Which food is served during {x}?", "Name what visitors of {x} taste."),
        ("the dish of {x}",),
        (),
        "dish",
    ),
    # --- species
    Relation(
        "discoverer", "species", "person",
        ("{S} was discovered by {o}.", "{o} discovered {s}.", "{S} was first described by {o}."),
        ("Who discovered {x}?", "Who first described {x}?"),
        ("To whom do we owe the first report of {x}?", "Name the finder of {x}."),
        ("the discoverer of {x}", "the person who discovered {x}"),
        ("the finder of {x}",),
        "discovered",
    ),
    Relation(
        "region", "species", "region",
        ("{S} lives only in {o}.", "{S} is found in {o}.", "{P} home is {o}."),
        ("In which region does {x} live?", "Where is {x} found?"),
        ("What region is home to {x}?", "Name the land in which {x} occurs."),
        ("the region where {x} lives",),
        ("the land in which {x} occurs",),
        "found",
    ),
    Relation(
        "colour", "species", "colour",
        ("{S} is {o}.", "{P} colour is {o}.", "{S} can be known by its {o} colour."),
        ("What colour is {x}?", "What is the colour of {x}?"),
        ("Which hue does {x} have?", "By what colour can one tell {x}?"),
        ("the colour of {x}",),
        (),
        "colour",
    ),
    # --- building
    Relation(
        "architect", "building", "person",
        ("{S} was designed by {o}.", "{P} architect was {o}.", "{o} designed {s}."),
        ("Who designed {x}?", "Who was the architect of {x}?"),
        ("Whose design is {x}?", "Name the person who drew the plans of {x}."),
        ("the architect of {x}", "the person who designed {x}"),
        ("the person who drew the plans of {x}",),
        "architect",
    ),
    Relation(
        "town", "building", "town",
        ("{S} stands in {o}.", "{S} can be seen in {o}.", "Visitors find it in {o}."),
        ("Where is {x}?", "In which town does {x} stand?"),
        ("What town must one visit to see {x}?", "Name the location of {x}."),
        ("the town where {x} stands", "the town of {x}"),
        ("the location of {x}",),
        "stands",
    ),
    Relation(
        "material", "building", "material",
        ("{S} is made of {o}.", "{S} was built of {o}.", "{P} walls are {o}."),
        ("What is {x} made of?", "Of which material was {x} built?"),
        ("Which stuff did the builders of {x} use?", "Name the building material of {x}."),
        ("the material of {x}", "what {x} is made of"),
        (),
        "made of",
    ),
    Relation(
        "year", "building", "year",
        ("{S} was completed in {o}.", "{S} opened in {o}.", "Work on it ended in {o}."),
        ("In what year was {x} completed?", "When was {x} completed?"),
        ("Which year saw the last stone of {x} laid?", "Give the year of completion of {x}."),
        ("the year when {x} was completed",),
        (),
        "completed",
    ),
    # --- ship
    Relation(
        "builder", "ship", "company",
        ("{S} was built by {o}.", "{P} builder was {o}.", "{o} built {s}."),
        ("Who built {x}?", "Which company built {x}?"),
        ("From whose yard did {x} come?", "Name the firm that made {x}."),
        ("the company that built {x}", "the builder of {x}"),
        ("the firm that made {x}",),
        "built",
    ),
    Relation(
        "captain", "ship", "person",
        ("{P} captain was {o}.", "{S} sailed under {o}.", "{o} was its captain."),
        ("Who was the captain of {x}?", "Who commanded {x}?"),
        ("Under whom did {x} sail?", "Name the master of {x}."),
        ("the captain of {x}", "the person who commanded {x}"),
        ("the master of {x}",),
        "captain",
    ),
    Relation(
        "year", "ship", "year",
        ("{S} was launched in {o}.", "{S} first sailed in {o}.", "The launch took place in {o}."),
        ("In what year was {x} launched?", "When was {x} launched?"),
        ("Which year saw {x} enter the water?", "Give the year of the first voyage of {x}."),
        ("the year when {x} was launched",),
        (),
        "launched",
    ),
    Relation(
        "cargo", "ship", "good",
        ("{S} carried {o}.", "{P} cargo was {o}.", "{S} was used to move {o}."),
        ("What did {x} carry?", "What was the cargo of {x}?"),
        ("With which load did {x} travel?", "Name the freight of {x}."),
        ("the cargo of {x}", "what {x} carried"),
        (),
        "cargo",
    ),
    # --- team
    Relation(
        "town", "team", "town",
        ("{S} plays in {o}.", "{S} comes from {o}.", "{P} home is {o}."),
        ("Where does {x} play?", "In which town does {x} play?"),
        ("Which town cheers for {x}?", "Name the home ground town of {x}."),
        ("the town where {x} plays", "the home town of {x}"),
        ("the town that cheers for {x}",),
        "plays",
    ),
    Relation(
        "coach", "team", "person",
        ("{P} coach is {o}.", "{S} is coached by {o}.", "{o} trains {s}."),
        ("Who coaches {x}?", "Who is the coach of {x}?"),
        ("By whom is {x} trained?", "Name the trainer of {x}."),
        ("the coach of {x}", "the person who coaches {x}"),
        ("the trainer of {x}",),
        "coach",
    ),
    Relation(
        "colour", "team", "colour",
        ("{P} shirts are {o}.", "Players wear {o}.", "{S} wears {o} shirts."),
        ("What colour does {x} wear?", "What colour are the shirts of {x}?"),
        ("In which hue do the players of {x} dress?", "Name the shade of the kit of {x}."),
        ("the colour of {x}", "the shirt colour of {x}"),
        (),
        "shirts colour",
    ),
    Relation(
        "sport", "team", "sport",
        ("{P} sport is {o}.", "{S} is a {o} club.", "{S} competes in {o}."),
        ("Which sport does {x} play?", "What is the sport of {x}?"),
        ("At what game does {x} compete?", "Name the discipline of {x}."),
        ("the sport of {x}",),
        (),
        "sport",
    ),
)  # fmt: skip

BY_SUBJECT: dict[str, tuple[Relation, ...]] = {t: tuple(r for r in RELATIONS if r.subject == t) for t in ENTITY_TYPES}
BY_NAME: dict[str, Relation] = {r.name: r for r in RELATIONS}
