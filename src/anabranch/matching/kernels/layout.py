"""Where everything in the numba engine lies: one vector of addresses and counters.

A compiled function pays for unpacking every array it is handed. So the engine keeps a single int64
vector, the *context*: the first part holds the addresses of its arrays, the second part counters
and heads of free lists. Compiled code looks an array up by its number below and sees it through a
pointer; an array that was memory-mapped from a snapshot looks just like one that was allocated.

Terms
    entry    one conjunction of one subscription
    slot     a place an entry can sit in; a run or a block of slots is contiguous
    cluster  entries that share an access predicate (symbol = 'IBM'), or an access axis, or neither
    run      the slots of a small cluster, 1 to 64 of them, checked one by one
    block    512 slots with bitmaps; the leaves of a large cluster's tree
    axis     one attribute seen one way: its kind, its number, its code or its text order
    cell     one of CELLS parts of an axis; every value lies in exactly one
    page     the bitmaps of one block and one axis: a row of 512 bits for each cell
    line     what an entry demands, in one cache line
    record   the rest of what it demands, as words
"""

from typing import Final

# -- array numbers: context[number] is the address --------------------------------------------

ENTRY_SLOT: Final = 0  #: i32 per entry: its slot.
ENTRY_CLUSTER: Final = 1  #: i32 per entry: its cluster if that has a run, else -2 - its block.
ENTRY_OWNER: Final = 2  #: i32 per entry: the first entry of its subscription.
ENTRY_NEXT: Final = 3  #: i32 per entry: the next of its subscription or free list, -1 at the end.
SLOT_ENTRY: Final = 4  #: i32 per slot: entry, MANY and DOUBT; -1 when empty.
ZONES: Final = 5  #: i64, ZONE_WORDS per block: what a search reads of most blocks.
RECORDS: Final = 6  #: i64 words.
PAGES: Final = 7  #: u64, PAGE_WORDS per page.
BLOCKS: Final = 8  #: i64, BLOCK_WORDS per block.
TABLES: Final = 9  #: i64, TABLE_WORDS per axis of a block: what only updates and rich blocks read.
CLUSTERS: Final = 10  #: i64, CLUSTER_WORDS per cluster.
HASH: Final = 11  #: i32, open addressing: cluster + 1, or 0.
NODES: Final = 12  #: i32, NODE_WORDS per node of the clusters' trees.
AXES: Final = 13  #: i64, AXIS_WORDS per axis.
BOUNDS: Final = 14  #: i64, CELLS - 1 per axis, ascending.
SAMPLES: Final = 15  #: i64, SAMPLE_SIZE keys per axis.
ATTRIBUTE_AXES: Final = 16  #: i32, SPACES per attribute: its axis in each space, or -1.
CODE_REFS: Final = 17  #: i32 per code: how many records name it.
CELL: Final = 18  #: i64 per axis: the event's cell (scratch).
LOW: Final = 19  #: i64 per axis: the event's key, rounded down (scratch).
HIGH: Final = 20  #: i64 per axis: the event's key, rounded up; for codes: the code (scratch).
REST: Final = 21  #: i64 per axis: what rounding down took away (scratch).
TOUCHED: Final = 22  #: i64: axes set by this event (scratch).
VISITED: Final = 23  #: i64: blocks to look into (scratch).
CANDIDATES: Final = 24  #: i32: slots to check (scratch).
STAMPS: Final = 25  #: i32 per entry: the last event an owner of several entries matched.
OUTPUT: Final = 26  #: i32: owners that match.
DOUBTS: Final = 27  #: i32: entries whose residue is yet to be evaluated.
GROUPS: Final = 28  #: i32 per entry: the destination of its subscription.
MASKS: Final = 29  #: u64: cell masks of a block's members while it is split (scratch).
FREED: Final = 30  #: i64: codes that no entry uses any longer.
ROW_PAGES: Final = 31  #: i64 per axis of a block: axis | page << 16.
LINES: Final = 32  #: i32, LINE_WORDS per slot: one cache line that decides almost always.
TIES: Final = 33  #: i32, TIE_WORDS per slot: the lower halves of the keys in the line.
HIGH_CELL: Final = 34  #: i64 per axis: the cell of a box's higher end (scratch of covering).
CODE_KEYS: Final = 35  #: i64 per code: the key of its text.
CELL_MASK: Final = 36  #: u64 per axis: the event's cells as bits; pattern axes may have several.
PATTERNS: Final = 37  #: i64, PATTERN_WORDS per code of a pattern.
PATTERN_HASH: Final = 38  #: i32, open addressing: code + 1, or 0.
LITERALS: Final = 39  #: u8: the literals of patterns, one after the other.
ATTRIBUTE_CLASSES: Final = 40  #: i32, 2 per attribute: its first class in CLASSES, how many.
CLASSES: Final = 41  #: i32: kind << 16 | length of the patterns an attribute has.
POWERS: Final = 42  #: i64: powers of the base of the text hash.
TEXT_HASHES: Final = 43  #: i64: hashes of all beginnings of a text (scratch).
HITS: Final = 44  #: i32 per code: the last event that satisfied the pattern.
HIT_LIST: Final = 45  #: i32: the patterns this event satisfies (scratch).
ROW_CERTAIN: Final = 46  #: i64 per axis of a block: page of the cells that decide alone, or -1.
UPPERS: Final = 47  #: i32, 2 per axis: the upper halves of LOW and HIGH (scratch).
NAME_HASH: Final = 48  #: i32, open addressing: attribute + 1, or 0.
NAMES: Final = 49  #: i64, NAME_WORDS per attribute.
NAME_LETTERS: Final = 50  #: u8: the names of attributes, one after the other.
NAME_SEEN: Final = 51  #: i32 per attribute: the last event that had it (scratch).
NAME_HASHES: Final = 52  #: i64: the hashes of an event's names (scratch).
MESSAGE: Final = 53  #: u8: one event as MessagePack (scratch).
IDS: Final = 54  #: i64 per entry: the id of its subscription, if ids are integers; else 0.
NAMED: Final = 55  #: i64: the ids that satisfy one event, if they are not too many (scratch).
ARRAYS: Final = 56

# -- counters, behind the addresses -----------------------------------------------------------

_C = 56
ENTRY_COUNT: Final = _C + 0  #: Entries ever used; capacity checks go by this.
ENTRY_FREE: Final = _C + 1  #: Head of the free list, -1 when empty. The same for those below.
SLOT_COUNT: Final = _C + 2
RECORD_COUNT: Final = _C + 3
PAGE_COUNT: Final = _C + 4
PAGE_FREE: Final = _C + 5
BLOCK_COUNT: Final = _C + 6
BLOCK_FREE: Final = _C + 7
TABLE_COUNT: Final = _C + 8
CLUSTER_COUNT: Final = _C + 9
CLUSTER_FREE: Final = _C + 10
NODE_COUNT: Final = _C + 11
NODE_FREE: Final = _C + 12
AXIS_COUNT: Final = _C + 13
HASH_MASK: Final = _C + 14
HASH_USED: Final = _C + 15
STAMP: Final = _C + 16
FREED_COUNT: Final = _C + 17
LIVE_ENTRIES: Final = _C + 18
RANDOM: Final = _C + 19  #: State of the sampler's generator: results never depend on it.
RECORDS_LIVE: Final = _C + 20  #: Words in use.
DOUBT_ENTRIES: Final = _C + 21  #: Entries whose record is not sufficient.
COVERING: Final = _C + 22  #: 1 where boxes are asked about: lines are whole, codes counted outside.

PATTERN_HASH_MASK: Final = _C + 24
RICHNESS: Final = _C + 25  #: Candidates per block in recent searches, in 1/64.
SLOT_FREE: Final = _C + 26  #: One head per run size 2**0 … 2**7.
TABLE_FREE: Final = SLOT_FREE + 10  #: One head per table size 4 * 2**0 … 4 * 2**15.
RECORD_FREE: Final = TABLE_FREE + 16  #: One head per size class of records.
RECORD_CLASSES: Final = 96

# -- capacities, in the unit of the counter ---------------------------------------------------

_K = RECORD_FREE + RECORD_CLASSES
ENTRY_CAPACITY: Final = _K + 0
SLOT_CAPACITY: Final = _K + 1
RECORD_CAPACITY: Final = _K + 2
PAGE_CAPACITY: Final = _K + 3
BLOCK_CAPACITY: Final = _K + 4
TABLE_CAPACITY: Final = _K + 5
CLUSTER_CAPACITY: Final = _K + 6
NODE_CAPACITY: Final = _K + 7
AXIS_CAPACITY: Final = _K + 8
CODE_CAPACITY: Final = _K + 9
OUTPUT_CAPACITY: Final = _K + 10
DOUBT_CAPACITY: Final = _K + 11
LITERAL_CAPACITY: Final = _K + 12
CLASS_CAPACITY: Final = _K + 13
TEXT_CAPACITY: Final = _K + 14
NAME_LETTER_CAPACITY: Final = _K + 15
MESSAGE_CAPACITY: Final = _K + 16
NAME_HASH_MASK: Final = _K + 17
TEXT_NEEDED: Final = _K + 18  #: What TEXT_CAPACITY must be for the text that did not fit.
CONTEXT_WORDS: Final = _K + 20

# -- sizes ------------------------------------------------------------------------------------

CELLS: Final = 32  #: Cells of ordered and code axes.
OTHER: Final = 32  #: Code axes: a text that no filter names.
MISS: Final = 33  #: The attribute is absent or of another kind.
MULTI: Final = 64  #: In CELL: the event lies in several cells of the axis, see CELL_MASK.
ROWS: Final = 34
WORDS: Final = 8  #: u64 words of a row.
BLOCK_SLOTS: Final = 512
PAGE_WORDS: Final = ROWS * WORDS
RUN_MAX: Final = 64  #: Slots of the largest run; beyond, a cluster gets blocks.
CHUNK_CLASS: Final = 7  #: A block's slots come in chunks of 128.
CHUNKS: Final = 4
SAMPLE_SIZE: Final = 256
NODE_WORDS: Final = 4  #: axis | feature << 16 (-1: always right), cut, left, right.
BY_MIDDLE: Final = 0  #: Features of an entry on an axis: twice the middle of its cells,
BY_WIDTH: Final = 1  #: or how many they are; -1 for an entry that does not constrain it.
MANY: Final = 1 << 30  #: In SLOT_ENTRY: the subscription has several entries.
DOUBT: Final = 1 << 29  #: In SLOT_ENTRY: the record is necessary, but not sufficient.
ENTRY_MASK: Final = DOUBT - 1
STAMP_MAX: Final = 0x7FFFFFF0  #: When STAMP gets here, all stamps are wiped.

# -- zones of a block: one cache line ---------------------------------------------------------

ZONE_WORDS: Final = 8
Z_NEXT: Final = 0  #: Next block of the cluster + 1, 0 at the end | first table row << 32.
Z_AXES: Final = 1  #: Up to three axes, 16 bits each, the narrowest zones first. 0xFFFF: none.
Z_RANGE: Final = 2  #: Three times lowest and highest key; on axes without order: cell mask, 0.
NO_AXIS: Final = 0xFFFF

# -- block: three cache lines -------------------------------------------------------------------

BLOCK_WORDS: Final = 24
B_TABLE: Final = 0  #: First table row | number of axes << 40 | size class << 56.
B_COUNT: Final = 1  #: Entries | cluster << 32. In a free block: the next free one.
B_GROUPS: Final = 2  #: One bit per destination (number modulo 64) that a member may have.
B_CHUNKS: Final = 4  #: First slot of each quarter of the block, or -1 while that is unused.
B_LIVE: Final = 8  #: 512 bits: slots in use.
B_WHOLE: Final = 16  #: 512 bits: members all of whose predicates are on axes with pages.

# -- table row: one axis of one block ---------------------------------------------------------

TABLE_WORDS: Final = 5
T_ZONE: Final = 0  #: Union of the members' cell masks.
T_LOWEST: Final = 1  #: Lowest and highest key any member admits, on ordered axes.
T_HIGHEST: Final = 2
T_LAST_LOW: Final = 3  #: The highest of the members' low ends, the lowest of their high ends:
T_FIRST_HIGH: Final = 4  #: a box that ends before either contains none of them.

# -- cluster ----------------------------------------------------------------------------------

CLUSTER_WORDS: Final = 10
C_COUNT: Final = 0  #: Entries.
C_RUN: Final = 1  #: First slot of the run, or -1; in a free cluster: the next free one.
C_SIZE: Final = 2  #: Slots of the run.
C_BLOCKS: Final = 3  #: First block, or -1.
C_ROOT: Final = 4  #: Root of the tree: node or -2 - block; -1 for none.
C_AXIS: Final = 5  #: Access axis, or -1.
C_KEY: Final = 6  #: Access key.
C_REST: Final = 7  #: Its rest; AXIS_ACCESS where the cluster has an axis but no key.
C_NEXT: Final = 8  #: The next cluster with a key on the same axis, or -1.
C_BACK: Final = 9  #: The one before, or -1.
AXIS_ACCESS: Final = -1

# -- axis -------------------------------------------------------------------------------------

AXIS_WORDS: Final = 8
A_ATTRIBUTE: Final = 0
A_SPACE: Final = 1
A_CLUSTER: Final = 2  #: The cluster whose access is this axis, or -1.
A_KEYS: Final = 3  #: Clusters whose access is a key on this axis.
A_REFS: Final = 4  #: Predicates on this axis.
A_SEEN: Final = 5  #: Keys offered to the sample.
A_BOUND_AT: Final = 6  #: When A_SEEN reaches this, the bounds are drawn again.
A_KEYED: Final = 7  #: The first cluster with a key on this axis, or -1.

# -- spaces: the ways to see an attribute -----------------------------------------------------

KIND: Final = 0
NUMBER: Final = 1
CODE: Final = 2
TEXT: Final = 3
PATTERN: Final = 4
SPACES: Final = 5

# -- patterns: a text begins with, ends with, contains or is a literal; each has a code ----------

PATTERN_WORDS: Final = 3
P_HASH: Final = 0
P_LITERAL: Final = 1  #: First byte in LITERALS | length << 32.
P_CLASS: Final = 2  #: Attribute << 32 | kind << 16 | length.
BEGINS: Final = 1
ENDS: Final = 2
CONTAINS: Final = 3
EQUALS: Final = 4  #: Found by the text as a whole; its length in P_CLASS ends at 0xFFFF.
#: A longer literal is left to Python.
LITERAL_BYTES_MAX: Final = 255

#: Cells of a KIND axis.
K_ABSENT: Final = 0
K_FALSE: Final = 1
K_TRUE: Final = 2
K_NUMBER: Final = 3
K_NAN: Final = 4
K_TEXT: Final = 5

# -- line: what an entry demands in the common case: up to five single ranges -----------------
#
# A line has the upper halves of the ends, drawn in by one where the lower half is not at the
# extreme: a key whose upper half lies within surely is in the range, one that lies outside by
# more than one surely is not, and for the rest the lower halves are looked up in TIES. A code c is
# the range of all keys whose upper half is c.

LINE_WORDS: Final = 16
L_ENTRY: Final = 0  #: As SLOT_ENTRY. In a free run's first slot: the next free run.
#: Ranges | low end drawn in << (8 + j) | high end drawn in << (16 + j) | pattern << (24 + j).
L_INFO: Final = 1
L_RECORD: Final = 2  #: Position of a record with further predicates, or -1.
L_AXES: Final = 3  #: Axes of the ranges, 16 bits each.
L_ENDS: Final = 6  #: Upper halves of low and high end of each range, drawn in.
LINE_RANGES: Final = 5
TIE_WORDS: Final = 10  #: Lower halves of the same.
SCRATCH_SLOTS: Final = 513  #: The first slots are never seated: 0 for an insert, 1 … for a split.

# -- records ----------------------------------------------------------------------------------
#
# What a line cannot hold.
# word 0: number of predicates | words in all << 16. Then for each predicate
# word 0: axis | test << 16 | count << 24, followed by what the test needs.

RANGES: Final = 0  #: count × (low key, high key); both ends are floats exactly.
FINE_RANGES: Final = 1  #: count × (low key, low rest, high key, high rest).
CODES: Final = 2  #: count codes, one of which it is.
NOT_CODES: Final = 3  #: a text, and none of these.
PATTERN_CODE: Final = 5  #: 1 code of a pattern that the text satisfies.
KINDS: Final = 4  #: mask of KIND cells.

# -- names of attributes ------------------------------------------------------------------------

NAME_WORDS: Final = 2
N_HASH: Final = 0
N_TEXT: Final = 1  #: First byte in NAME_LETTERS | length << 32.

# -- sizes of scratch memory for one event --------------------------------------------------------

NAME_HASHES_MAX: Final = 256  #: A message with more names is left to Python, if it is checked.
NAMED_MAX: Final = 4_096  #: More ids than these are named by a call of their own.

# -- what reading and answering may come to; anything else is a position or a count ---------------

UNREAD: Final = -1  #: Not a plain map of names to values: Python has to look at it.
TEXT_FULL: Final = -2  #: TEXT_CAPACITY is too small, see TEXT_NEEDED.
OUTPUT_FULL: Final = -3  #: OUTPUT or DOUBTS might overflow.
