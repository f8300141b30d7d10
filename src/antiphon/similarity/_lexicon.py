"""Word lists that keep similar from meaning the same: negations, opposites, closed classes, fillers, places.

The lists are short on purpose. A word that is in none of them has to stand on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _groups(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(line.split()) for line in text.strip().splitlines())


NEGATIONS = _words(
    "not no never without except excluding excludes exclude neither nor none nobody nothing nowhere cannot cant dont "
    "doesnt didnt isnt arent wasnt werent wont wouldnt shouldnt couldnt hasnt havent hadnt mustnt aint lacking minus "
    "unless"
)
"""Words that turn a statement around (contractions come without their apostrophe)."""

FILLERS = _words("an the this that these those is are was were be been have has had it there and please did")
"""Words that carry no request of their own."""

PAST = _words("was were did had been")
"""Fillers that put a question into the past."""

AUXILIARIES = _words("do does did can could would will shall may might must should am are have has had is was were if")
"""Words behind which a pronoun only says who asks."""

COURTESIES = _words("do does can could would")
"""Words that only ask at the start, or before a pronoun."""

PRONOUNS = _words("i we you")

LETTERED = _words(
    "vitamin hepatitis influenza grade class type plan team group war exhibit appendix section level category phase "
    "stage part option size channel"
)
"""Nouns that a letter may follow as part of the name: *vitamin A*, *World War I*."""

OPENERS = _words("what whats which how kindly find get fetch display lookup")
"""Words that only ask, as long as nothing but fillers came before them."""

ASKING = _words("show tell give search look let want wants need needs know")
"""Words that only ask at the start, and then only in company: *show me*, *I need*, *search for*."""

COMPANY = _words("i we you me us the a an for about to can could would please lets let")
"""Words whose company turns a word of :data:`ASKING` into a mere request."""

ABOUT = _words("information info details facts list overview")
"""Nouns that only ask at the start when a link follows: *information about*, *list of*."""

NOWADAYS = _words("weather temperature time price cost stock president ceo status condition conditions exchange")
"""Things that are meant as of now: *current* before them says nothing new."""

LINKS = _words("of in on at for about regarding concerning")
"""Words around which a phrase turns without changing: *news about jazz*, *jazz news*."""

ROLES = _words(
    "from to into onto before after than over under by against with via through versus vs above below between until "
    "since beside behind during toward towards per"
)
"""Words that say what role the next word plays."""

_OPPOSITES = """
accept reject decline refuse
accepted rejected declined refused
add remove subtract
added removed
admit deny
agree disagree
alive dead
all none some
always never
allow forbid block deny prohibit
allowed forbidden blocked denied prohibited
approve deny reject decline disapprove
approved denied rejected declined disapproved
arrival departure
arrive depart
ascending descending
asc desc
asleep awake
available unavailable
begin end finish
best worst
better worse
before after
big small
bigger smaller
biggest smallest
birth death
bottom top
bought sold
bullish bearish
buy sell
cheap expensive
cheaper pricier
cheapest priciest expensive
clean dirty
cold hot warm
confirm cancel
confirmed cancelled canceled
correct incorrect wrong
create delete destroy
created deleted destroyed
credit debit
decrease increase
decreased increased
decreasing increasing
deep shallow
deposit withdraw withdrawal
dry wet
earliest latest
early late
earlier later
easy hard difficult
empty full
encode decode
encrypt decrypt
enter exit leave
even odd
every some
fail succeed pass
failed succeeded passed
failure success
failing passing
false true
fast slow
faster slower
fat thin
father mother
female male
few many
first last
fix break
forward backward
found lost
gain loss
good bad
grow shrink
guilty innocent
happy sad
hate love
heavy light
high low
higher lower
highest lowest
import export
imported exported
in out
include exclude
including excluding
income expense
incoming outgoing
inbound outbound
input output
inside outside
insert delete
install uninstall
join leave
left right
legal illegal
less more
least most
light dark
load unload
lock unlock
locked unlocked
login logout
long short
longer shorter
longest shortest
major minor
majority minority
man woman
max min
maximum minimum
morning evening
near far
new old
newer older
newest oldest
next previous
north south
off on
offline online
open closed shut
read write unread
opened closed
optional required mandatory
over under
above below
pause resume
permit forbid
permitted forbidden
plus minus
poor rich
positive negative
present absent
private public
profit loss
prefix suffix
pros cons
advantages disadvantages
benefits drawbacks risks
push pull
quiet loud
raise lower
raised lowered
receive send
received sent
recipient sender
rise fall
rose fell
rising falling
safe unsafe dangerous
secure insecure
send receive
short tall
seller buyer
husband wife
revenue expense
show hide
single married
source target destination
start stop end
started stopped ended
strong weak
subscribe unsubscribe
supply demand
today yesterday tomorrow
up down
upload download
upper lower
upstream downstream
urban rural
valid invalid
victory defeat
visible hidden
win lose
winner loser
won lost
wins loses
with without
yes no
young old
younger older
youngest oldest
causes effects
cause effect
"""

_CLASSES = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen \
eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion dozen half \
quarter
first second third fourth fifth sixth seventh eighth ninth tenth last next previous this
once twice thrice single double triple
monday tuesday wednesday thursday friday saturday sunday weekday weekend mon tue tues wed thu thur thurs fri sat sun
january february march april may june july august september october november december jan feb mar apr jun jul aug \
sep sept oct nov dec
spring summer autumn fall winter
today yesterday tomorrow tonight now
morning noon afternoon evening night midnight
second minute hour day week month year decade century
hourly daily weekly biweekly monthly quarterly yearly annual annually
millisecond nanosecond microsecond
celsius fahrenheit kelvin metric imperial
millimeter centimeter meter kilometer inch foot feet yard mile mm cm km metre kilometre
gram kilogram milligram tonne ton pound ounce kg lb lbs oz stone
liter litre milliliter gallon pint cup tablespoon teaspoon
byte kilobyte megabyte gigabyte terabyte kb mb gb tb
watt kilowatt volt ampere joule calorie
usd eur gbp jpy cny inr chf cad aud dollar euro pound yen yuan rupee franc peso won bitcoin cent
red blue green yellow orange purple violet pink brown black white gray grey gold silver beige
north south east west northern southern eastern western northeast northwest southeast southwest
father mother brother sister son daughter uncle aunt nephew niece husband wife grandfather grandmother parent child \
boy girl man woman men women
breakfast brunch lunch dinner supper
small medium large tiny huge
who whom whose when where why
mercury venus earth mars jupiter saturn uranus neptune pluto moon sun
english french german spanish italian portuguese russian chinese japanese korean arabic hindi dutch swedish danish \
norwegian finnish polish greek turkish hebrew latin
football soccer basketball baseball tennis hockey golf rugby cricket volleyball
car truck bus train plane flight ship boat bike bicycle motorcycle taxi tram subway
chicken beef pork fish lamb turkey tofu
coffee tea water wine beer juice milk
cat dog horse cow pig sheep bird
doctor nurse dentist surgeon pharmacist
gold silver copper platinum iron
linux windows macos android ios
"""

_SYNONYMS = """
latest recent newest
best top
buy purchase
cheap inexpensive affordable
movie film
car automobile
photo picture image photograph
begin start commence
big large
tv television
near nearby
price cost
phone telephone
doctor physician
shop store
fix repair
guide tutorial
delete remove erase
information info
documentation doc
app application
definition meaning
fast quick quickly
child kid children
man men
woman women
person people
usa america
uk britain
bike bicycle
plane airplane aeroplane
explain describe
centre center
colour color
favourite favorite
metre meter
kilometre kilometer
litre liter
programme program
organisation organization
specialised specialized
email mail
vs versus
apartment flat
lawyer attorney
pharmacy drugstore chemist
garbage trash rubbish
sofa couch
method technique
statistic stats statistics
math maths mathematics
happen occur
help assist
choose select
difference distinction
advantage benefit
disadvantage drawback
requirement prerequisite
company firm
attraction sight
famous renowned
beautiful gorgeous
dangerous hazardous
rich wealthy
smart intelligent
sick ill
lately recently
approximately roughly
yearly annual annually
"""

_STATES = """
al:alabama ak:alaska az:arizona ar:arkansas ca:california co:colorado ct:connecticut de:delaware fl:florida ga:georgia
hi:hawaii id:idaho il:illinois in:indiana ia:iowa ks:kansas ky:kentucky la:louisiana me:maine md:maryland
ma:massachusetts mi:michigan mn:minnesota ms:mississippi mo:missouri mt:montana ne:nebraska nv:nevada nh:new_hampshire
nj:new_jersey nm:new_mexico ny:new_york nc:north_carolina nd:north_dakota oh:ohio ok:oklahoma or:oregon
pa:pennsylvania ri:rhode_island sc:south_carolina sd:south_dakota tn:tennessee tx:texas ut:utah vt:vermont va:virginia
wa:washington wv:west_virginia wi:wisconsin wy:wyoming dc:district_of_columbia on:ontario qc:quebec
bc:british_columbia ab:alberta nsw:new_south_wales
"""

_COUNTRIES = """
afghanistan albania algeria andorra angola argentina armenia australia austria azerbaijan bahamas bahrain bangladesh
barbados belarus belgium belize benin bhutan bolivia bosnia botswana brazil brunei bulgaria cambodia cameroon canada
chad chile china colombia congo costa_rica croatia cuba cyprus czechia czech_republic denmark ecuador egypt
el_salvador england estonia ethiopia fiji finland france gabon gambia georgia germany ghana greece guatemala guinea
guyana haiti honduras hungary iceland india indonesia iran iraq ireland israel italy jamaica japan jordan kazakhstan
kenya kuwait laos latvia lebanon liberia libya lithuania luxembourg madagascar malawi malaysia maldives mali malta
mauritius mexico moldova monaco mongolia montenegro morocco mozambique myanmar namibia nepal netherlands new_zealand
nicaragua niger nigeria north_korea norway oman pakistan panama paraguay peru philippines poland portugal qatar
romania russia rwanda saudi_arabia scotland senegal serbia singapore slovakia slovenia somalia south_africa
south_korea spain sri_lanka sudan sweden switzerland syria taiwan tanzania thailand togo tunisia turkey uae uganda uk
ukraine uruguay usa uzbekistan venezuela vietnam wales yemen zambia zimbabwe
"""

ALIASES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("united", "states", "of", "america"), "usa"),
    (("united", "states"), "usa"),
    (("u", "s", "a"), "usa"),
    (("united", "kingdom"), "uk"),
    (("great", "britain"), "uk"),
    (("new", "york", "city"), "nyc"),
    (("look", "up"), "lookup"),
)
"""Several words with one usual short form."""

_HOMES = """
paris france
london uk england
berlin germany
rome italy
milan italy
naples italy
venice italy
florence italy
athens greece
moscow russia
madrid spain
dublin ireland
lima peru
cairo egypt
delhi india
sydney australia new_south_wales
melbourne australia
vancouver canada british_columbia
manchester uk england
oxford uk england
hamburg germany
vienna austria
warsaw poland
lisbon portugal
geneva switzerland
amsterdam netherlands
copenhagen denmark
stockholm sweden
prague czechia czech_republic
"""

AMBIGUOUS_PLACES = _words(
    "springfield portland cambridge birmingham columbus arlington richmond georgia jackson franklin greenville "
    "bristol clinton salem madison georgetown fairview aurora charleston rochester lexington valencia toledo santiago "
    "washington hamilton victoria kingston wellington wilmington glendale pasadena peoria columbia albany newport "
    "plymouth worcester newcastle perth york jose"
)
"""Place names that many places share: the region after them may not be dropped."""

ANYWHERE = _words("today yesterday tomorrow tonight now")
"""Words that mean the same wherever they stand."""

HEADS = _words(
    "weather news population capital history definition review recipe lyric forecast restaurant hotel symptom "
    "documentation"
)
"""Common subjects of a search; such a word may change places with the name it goes with."""


def _pairs(groups: Iterable[tuple[str, ...]]) -> dict[str, frozenset[str]]:
    """The first word of each line against every other, both ways."""
    found: dict[str, set[str]] = {}
    for first, *others in groups:
        for other in others:
            found.setdefault(first, set()).add(other)
            found.setdefault(other, set()).add(first)
    return {word: frozenset(others) for word, others in found.items()}


OPPOSITES = _pairs(_groups(_OPPOSITES))
"""Word to its opposites."""

CLASS_OF = {word: number for number, group in enumerate(_groups(_CLASSES)) for word in group}
"""Closed classes: two different words of one class never mean the same."""

SYNONYMS = {word: group[0] for group in reversed(_groups(_SYNONYMS)) for word in group}
"""Word to the word that stands for its group."""

STATES = {short: full for short, _, full in (entry.partition(":") for entry in _STATES.split())}
"""Postal code of a region to its name."""

COUNTRIES = _words(_COUNTRIES)
REGIONS = COUNTRIES | frozenset(STATES.values())

HOMES = {group[0]: frozenset(group[1:]) for group in _groups(_HOMES)}
"""Where a bare city name lies if nothing else is said."""

_PREFIXES = ("un", "in", "im", "il", "ir", "dis", "non", "de", "mis")


def opposite(left: str, right: str) -> bool:
    """Whether two lower-case words are opposites, by the list or by a negating prefix.

    >>> opposite("approved", "denied"), opposite("active", "inactive"), opposite("car", "card")
    (True, True, False)
    """
    if right in OPPOSITES.get(left, ()):
        return True
    short, long = sorted((left, right), key=len)
    return len(short) >= 4 and any(long == prefix + short for prefix in _PREFIXES)
