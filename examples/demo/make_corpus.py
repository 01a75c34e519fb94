"""Generates the demo's parallel corpus: English and Ravic, a constructed language.

    python make_corpus.py FOLDER

writes FOLDER/{train,valid,test}.{en,rv}. It needs no other data.

Ravic cannot be translated word by word. Unlike English, it
  * puts the verb last, the recipient before the object, and the time first;
  * puts adjectives and determiners after their noun, agreeing in gender, number and case, and possessors before it;
  * puts a relative clause before its noun, as a participle that agrees with the noun;
  * uses postpositions with the locative: "the house behind" for "behind the house";
  * has no pronouns: the verb is inflected for person and number, and in the past also for gender;
  * negates with a word before the verb and an ending on it, which put the object in the genitive;
  * marks a question by its first word.

Some pairs of words are excluded from training (`held_out`). Every sentence of valid and test has both an
adjective-noun pair and a verb-object pair that are not in training, so memorizing sentences or phrases does not help.
The corpus is the same on every machine and in every version of Python.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.storage.atomic import staged_file

T = TypeVar("T")
Verb = tuple[str, str, str]  # base, third person, past

SIZES = {"train": 16_000, "valid": 300, "test": 300}
LONGEST = 14  # words of an English sentence

# Root and gender of each noun in Ravic; the gender cannot be inferred from the English word.
PEOPLE = {
    "boy": ("palk", "m"), "teacher": ("dros", "f"), "farmer": ("guv", "m"), "girl": ("lind", "f"),
    "doctor": ("met", "n"), "king": ("rov", "m"), "queen": ("sel", "f"), "child": ("nip", "n"),
    "dog": ("karv", "m"), "cat": ("mish", "f"), "horse": ("tolm", "n"), "bird": ("fir", "f"),
    "baker": ("pond", "n"), "sailor": ("brunt", "f"), "friend": ("am", "m"), "wolf": ("hurg", "n"),
}  # fmt: skip
THINGS = {
    "house": ("dom", "f"), "tree": ("arb", "m"), "river": ("velt", "n"), "book": ("lesk", "f"),
    "table": ("plan", "m"), "stone": ("krat", "n"), "apple": ("pom", "f"), "letter": ("skriv", "n"),
    "boat": ("nav", "m"), "garden": ("hort", "f"), "window": ("fenst", "n"), "bridge": ("zamt", "m"),
    "lamp": ("lus", "n"), "box": ("kest", "f"), "coat": ("mant", "m"), "mountain": ("berk", "n"),
}  # fmt: skip
NOUNS = {**PEOPLE, **THINGS}
PLURALS = {"child": "children", "wolf": "wolves", "box": "boxes"}
ADJECTIVES = {
    "old": "vet", "small": "pik", "big": "grom", "red": "rub", "green": "zel", "white": "alv",
    "happy": "gaud", "quiet": "tis", "strange": "mirk", "young": "jun", "clean": "purt", "dark": "tem",
}  # fmt: skip
DETERMINERS = {
    "sg": {"the": "", "a": "en", "this": "sil", "that": "tol", "my": "mer", "your": "tuv"},
    "pl": {"the": "", "two": "dun", "three": "tris", "these": "sil", "those": "tol", "my": "mer"},
}
TRANSITIVE: dict[Verb, str] = {
    ("see", "sees", "saw"): "vid", ("find", "finds", "found"): "trov", ("like", "likes", "liked"): "plak",
    ("carry", "carries", "carried"): "port", ("paint", "paints", "painted"): "kolr", ("hear", "hears", "heard"): "auz",
    ("follow", "follows", "followed"): "sekv", ("buy", "buys", "bought"): "kump", ("draw", "draws", "drew"): "desn",
    ("forget", "forgets", "forgot"): "obl",
}  # fmt: skip
INTRANSITIVE: dict[Verb, str] = {
    ("sleep", "sleeps", "slept"): "dorm", ("sing", "sings", "sang"): "kant", ("wait", "waits", "waited"): "stov",
    ("fall", "falls", "fell"): "padr", ("laugh", "laughs", "laughed"): "rid",
}  # fmt: skip
DITRANSITIVE: dict[Verb, str] = {
    ("give", "gives", "gave"): "don", ("show", "shows", "showed"): "mons", ("sell", "sells", "sold"): "vend",
}  # fmt: skip
VERBS = {**TRANSITIVE, **INTRANSITIVE, **DITRANSITIVE}
PLACES = {"in": "ne", "near": "apud", "behind": "retro", "under": "suv"}
TIMES = {
    "past": {"yesterday": "hier", "last night": "nokt"},
    "present": {"today": "hod", "every day": "cadi"},
    "future": {"tomorrow": "kras", "soon": "balt"},
}
PRONOUNS = {  # person, number, gender
    "i": ("1", "sg", "m"), "you": ("2", "sg", "m"), "he": ("3", "sg", "m"),
    "she": ("3", "sg", "f"), "we": ("1", "pl", "m"), "they": ("3", "pl", "m"),
}  # fmt: skip

VOWELS = {("m", "sg"): "o", ("m", "pl"): "i", ("f", "sg"): "a", ("f", "pl"): "e", ("n", "sg"): "u", ("n", "pl"): "y"}
CASES = {"nominative": "", "accusative": "n", "dative": "k", "genitive": "s", "locative": "r"}
TENSES = {"past": "al", "present": "", "future": "ur"}
PERSONS = {("1", "sg"): "em", ("2", "sg"): "es", ("3", "sg"): "et", ("1", "pl"): "om", ("3", "pl"): "ent"}
PARTICIPLE, NOT, NOT_ENDING, QUESTION = "and", "ma", "ko", "chu"


@dataclass(frozen=True)
class Noun:
    """A noun phrase, such as "the old dog", "the king's dog" or "the dog that saw the cat"."""

    word: str
    number: str
    determiner: str = "the"
    adjective: str | None = None
    owner: "Noun | None" = None  # possessor, which replaces the determiner
    clause: "tuple[Verb, Noun] | None" = None  # relative clause: verb and object

    @property
    def person(self) -> tuple[str, str, str]:
        return "3", self.number, NOUNS[self.word][1]

    def nested(self) -> "Iterator[Noun]":
        """Yield this noun and every noun inside it."""
        yield self
        for noun in (self.owner, self.clause and self.clause[1]):
            if noun:
                yield from noun.nested()


@dataclass(frozen=True)
class Sentence:
    """A statement or question, independent of the language. A string as subject is a pronoun."""

    subject: str | Noun
    verb: Verb
    tense: str
    object: Noun | None = None
    recipient: Noun | None = None
    place: tuple[str, Noun] | None = None
    time: str | None = None
    negated: bool = False
    question: bool = False

    def nouns(self) -> Iterator[Noun]:
        """Yield every noun of the sentence."""
        for noun in (self.subject, self.object, self.recipient, self.place and self.place[1]):
            if isinstance(noun, Noun):
                yield from noun.nested()

    def adjective_noun_pairs(self) -> set[tuple[str, str]]:
        """Every (adjective, noun) of the sentence."""
        return {(noun.adjective, noun.word) for noun in self.nouns() if noun.adjective}

    def verb_object_pairs(self) -> set[tuple[str, str]]:
        """Every (verb, object) of the sentence and its relative clauses."""
        main = {(self.verb[0], self.object.word)} if self.object else set()
        return main | {(noun.clause[0][0], noun.clause[1].word) for noun in self.nouns() if noun.clause}


def held_out(word: str, noun: str) -> bool:
    """Whether a pair of an adjective or verb with a noun is excluded from training."""
    words = [*ADJECTIVES, *(verb[0] for verb in VERBS)]
    return (words.index(word) + list(NOUNS).index(noun)) % 8 == 0


# --- English


def english(sentence: Sentence) -> str:
    """Realize a sentence in English, in lower case."""
    subject = sentence.subject if isinstance(sentence.subject, str) else english_noun(sentence.subject)
    first, rest = _english_verb(sentence)
    words = [first, subject, *rest] if sentence.question else [subject, first, *rest]
    if sentence.object:
        words.append(english_noun(sentence.object))
    if sentence.recipient:
        words += ["to", english_noun(sentence.recipient)]
    if sentence.place:
        words += [sentence.place[0], english_noun(sentence.place[1])]
    if sentence.time:
        words.append(sentence.time)
    return " ".join(words) + ("?" if sentence.question else ".")


def _english_verb(sentence: Sentence) -> tuple[str, list[str]]:
    """The finite verb, which precedes the subject in a question, and the rest of the verb phrase."""
    base, third, past = sentence.verb
    person, number, _ = _person(sentence.subject)
    is_third = (person, number) == ("3", "sg")
    if sentence.tense == "future":
        return "will", [*["not"] * sentence.negated, base]
    if sentence.negated or sentence.question:
        do = "did" if sentence.tense == "past" else "does" if is_third else "do"
        return do, [*["not"] * sentence.negated, base]
    return (past if sentence.tense == "past" else third if is_third else base), []


def english_noun(noun: Noun) -> str:
    """Realize a noun phrase in English."""
    plural = PLURALS.get(noun.word, f"{noun.word}s")
    words = [noun.adjective] if noun.adjective else []
    words.append(noun.word if noun.number == "sg" else plural)
    if noun.owner:
        owner = english_noun(noun.owner)
        words.insert(0, f"{owner}'" if owner.endswith("s") else f"{owner}'s")
    else:
        before_vowel = noun.determiner == "a" and words[0][0] in "aeiou"
        words.insert(0, "an" if before_vowel else noun.determiner)
    if noun.clause:
        verb, thing = noun.clause
        words += ["that", verb[2], english_noun(thing)]
    return " ".join(words)


# --- Ravic


def ravic(sentence: Sentence) -> str:
    """Realize a sentence in Ravic, in lower case."""
    words = [QUESTION] if sentence.question else []
    if sentence.time:
        words.append(TIMES[sentence.tense][sentence.time])
    if isinstance(sentence.subject, Noun):
        words.append(ravic_noun(sentence.subject, "nominative"))
    if sentence.place:
        words += [ravic_noun(sentence.place[1], "locative"), PLACES[sentence.place[0]]]
    if sentence.recipient:
        words.append(ravic_noun(sentence.recipient, "dative"))
    if sentence.object:
        words.append(ravic_noun(sentence.object, "genitive" if sentence.negated else "accusative"))
    words += [NOT, _ravic_verb(sentence) + NOT_ENDING] if sentence.negated else [_ravic_verb(sentence)]
    return " ".join(words) + ("?" if sentence.question else ".")


def _ravic_verb(sentence: Sentence) -> str:
    person, number, gender = _person(sentence.subject)
    shows_gender = sentence.tense == "past" and person == "3"
    ending = TENSES[sentence.tense] + PERSONS[person, number]
    return VERBS[sentence.verb] + ending + (VOWELS[gender, number] if shows_gender else "")


def ravic_noun(noun: Noun, case: str) -> str:
    """Realize a noun phrase in Ravic, in the given case."""
    root, gender = NOUNS[noun.word]
    ending = VOWELS[gender, noun.number] + CASES[case]
    words = []
    if noun.clause:
        verb, thing = noun.clause
        words += [ravic_noun(thing, "accusative"), VERBS[verb] + PARTICIPLE + ending]
    if noun.owner:
        words.append(ravic_noun(noun.owner, "genitive"))
    words.append(root + ending)
    if noun.adjective:
        words.append(ADJECTIVES[noun.adjective] + ending)
    determiner = "" if noun.owner else DETERMINERS[noun.number][noun.determiner]
    if determiner:
        words.append(determiner + ending)
    return " ".join(words)


def _person(subject: str | Noun) -> tuple[str, str, str]:
    """Person, number and gender of a subject."""
    return PRONOUNS[subject] if isinstance(subject, str) else subject.person


def lexicon() -> dict[str, str]:
    """An English gloss for every form of every Ravic word."""
    forms = {QUESTION: "(question)", NOT: "not", **{postposition: word for word, postposition in PLACES.items()}}
    for times in TIMES.values():
        forms |= {adverb: word.replace(" ", "-") for word, adverb in times.items()}
    for (gender, number), vowel in VOWELS.items():
        for case in CASES:
            ending = vowel + CASES[case]
            forms |= {root + ending: word for word, root in (ADJECTIVES | DETERMINERS[number]).items() if root}
            forms |= {root + PARTICIPLE + ending: f"that-{past}" for (_, _, past), root in VERBS.items()}
            mark = {"dative": "to-", "genitive": "of-"}.get(case, "")
            for word, (root, own) in NOUNS.items():
                if own == gender:
                    forms[root + ending] = mark + (word if number == "sg" else PLURALS.get(word, f"{word}s"))
    subjects = {PERSONS[person, number]: f"{word}-" for word, (person, number, _) in PRONOUNS.items() if person != "3"}
    for (base, _, past), root in VERBS.items():
        for word, tense in ((past, "past"), (base, "present"), (f"will-{base}", "future")):
            for person in PERSONS.values():
                for ending in (person + vowel + end for vowel in ("", *VOWELS.values()) for end in ("", NOT_ENDING)):
                    forms[root + TENSES[tense] + ending] = subjects.get(person, "") + word
    return forms


def gloss(sentence: str, forms: Mapping[str, str]) -> str:
    """Replace each word of a Ravic sentence by its English gloss. Unknown words are kept."""
    return " ".join(forms.get(word, word) for word in sentence.strip("?.").split())


# --- The corpus


class SentenceGenerator:
    """Draws random sentences. Uses only `Random.random`, whose numbers are the same in every version of Python."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random.random() * len(choices))]

    def noun(self, words: Sequence[str], simple: bool = False) -> Noun:
        """Draw a noun from `words`; a simple one has no owner and no clause."""
        number = "pl" if self.chance(0.3) else "sg"
        adjective = self.pick(list(ADJECTIVES)) if self.chance(0.45) else None
        owner = clause = None
        if not simple and self.chance(0.1):
            owner = self.noun(list(PEOPLE), simple=True)
        elif not simple and self.chance(0.15):
            clause = self.pick(list(TRANSITIVE)), self.noun(list(NOUNS), simple=True)
        return Noun(self.pick(words), number, self.pick(list(DETERMINERS[number])), adjective, owner, clause)

    def sentence(self) -> Sentence:
        verb = self.pick([*list(TRANSITIVE) * 2, *INTRANSITIVE, *list(DITRANSITIVE) * 2])
        tense = self.pick(list(TENSES))
        return Sentence(
            subject=self.pick(list(PRONOUNS)) if self.chance(0.3) else self.noun(list(PEOPLE)),
            verb=verb,
            tense=tense,
            object=None if verb in INTRANSITIVE else self.noun(list(NOUNS)),
            recipient=self.noun(list(PEOPLE), simple=True) if verb in DITRANSITIVE else None,
            place=(self.pick(list(PLACES)), self.noun(list(THINGS), simple=True)) if self.chance(0.25) else None,
            time=self.pick(list(TIMES[tense])) if self.chance(0.3) else None,
            negated=self.chance(0.25),
            question=self.chance(0.2),
        )


def make(sizes: dict[str, int]) -> dict[str, list[Sentence]]:
    """Generate splits of the given sizes; all sentences are distinct."""
    splits: dict[str, list[Sentence]] = {name: [] for name in sizes}
    generator = SentenceGenerator(seed=1)
    seen: set[str] = set()
    while any(len(splits[name]) < size for name, size in sizes.items()):
        sentence = generator.sentence()
        text = english(sentence)
        new_adjectives = any(held_out(*pair) for pair in sentence.adjective_noun_pairs())
        new_objects = any(held_out(*pair) for pair in sentence.verb_object_pairs())
        if text in seen or len(text.split()) > LONGEST or new_adjectives != new_objects:
            continue
        wanted = [name for name in splits if (name != "train") == new_adjectives and len(splits[name]) < sizes[name]]
        if wanted:
            seen.add(text)
            splits[wanted[0]].append(sentence)
    return splits


@command("make_corpus.py")
@click.argument("folder", type=PathName())
def main(folder: Path) -> None:
    """Write FOLDER/{train,valid,test}.{en,rv}."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, sentences in make(SIZES).items():
        for language, say in (("en", english), ("rv", ravic)):
            text = "".join(f"{say(sentence)}\n" for sentence in sentences)
            with staged_file(folder / f"{name}.{language}") as file:
                file.write(text.encode())


if __name__ == "__main__":
    main()
