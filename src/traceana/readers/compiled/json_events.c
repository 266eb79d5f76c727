/* Scans the events of a Chrome trace into columns: bytes of events in, columns out, in one pass.
 *
 * The scanner accepts events as profilers write them. Text of any other form is refused as a whole,
 * and the decoder in Python reads it: doubled keys, values of another type, escapes in keys, numbers
 * that are not plain, bytes that are not UTF-8, deep nesting. So there is one implementation of what
 * is repaired, lost or counted in the ledger.
 *
 * Which keys are read, and which columns they fill, is not written here: decode.py passes a plan.
 *
 * The text is hostile. Every read is behind a comparison with `end`; sizes are size_t; nothing
 * recurses; each table grows with the number of events, which is bounded by the bytes of the text.
 */

#include "scanner.h"

enum {
    MOST_FIELDS = 64,
    MOST_COLUMNS = 48,
    MOST_FRAMES = 16,
    MOST_RULES = 64,
    MOST_ROUTES = 256, /* pairs of phase and category in one text; a trace has some twenty */
    BUCKETS = 256,     /* of the table of keys, a power of two */
    MOST_PROBES = 256, /* in the table of texts: more are a sign of chosen collisions */
    DEEPEST = 60,      /* levels of a value that is passed over; one bit each */
    LEFT_OUT = -1,
    NO_FIELD = -1,
    NO_KEY = 0xFF,
};

static const size_t LONGEST = (size_t)1 << 30;

/* An absent number in a column. A number of this value is refused. */
static const int64_t NO_NUMBER = INT64_MIN;

/* ---- The plan: which keys are read, and what becomes of them. */

struct field {
    char *key;
    size_t length;
    char kind; /* i: integer or text, s: text, o: text or null, t: time, r: raw JSON, a: any */
};

struct keys {
    byte buckets[BUCKETS]; /* number of a field, or NO_KEY */
};

struct column {
    char kind; /* i: integer, n: integer but no text, t: time, s: text, r: raw, x y z: of a list */
    int first, second; /* fields; the second where the first is null or absent */
};

struct frame {
    int columns;
    struct column column[MOST_COLUMNS];
};

/* Events of a phase and lower-case category are rows of a frame. Without a category: of all others.
   Events whose id is smaller than the least are counted alone; 0: none. */
struct rule {
    char *phase, *category;
    int frame;
    int64_t least;
};

struct plan {
    int fields, frames, rules;
    int phase, category, arguments, id; /* numbers of the fields ph, cat, args and id */
    uint64_t seed;
    struct field field[MOST_FIELDS];
    struct keys event, argument;
    struct frame frame[MOST_FRAMES];
    struct rule rule[MOST_RULES];
};

/* ---- The scan of one text. */

enum state { ABSENT, NONE, NUMBER, STRING, RAW, LIST, OTHER };

struct span {
    const byte *start;
    size_t length;
    bool escaped;
};

struct value {
    struct span text;
    int64_t number[3];
    int count; /* numbers of a list, at most three */
};

/* Distinct texts; their codes begin with 1, and 0 is an absent text. */
struct texts {
    struct span *all;
    uint64_t *hashes;
    uint32_t *buckets;
    size_t count, capacity, mask;
};

struct cells {
    void *data; /* int64_t or uint32_t */
    size_t nulls;
};

struct rows {
    size_t count, capacity;
    struct cells cells[MOST_COLUMNS];
};

struct route {
    struct span phase, category; /* a category without a start is null */
    int frame;
    int64_t least;
    size_t events;
};

struct scan {
    const struct plan *plan;
    const byte *at, *end;
    bool no_memory;
    size_t events;
    byte state[MOST_FIELDS];
    struct value value[MOST_FIELDS];
    struct texts texts, raws;
    byte *decoded, *decoded_end; /* texts without their escapes */
    size_t longest;
    int routes;
    struct route route[MOST_ROUTES];
    struct rows rows[MOST_FRAMES];
};

/* Every function that returns bool returns false where the text is refused, or memory is out. */

static void *grown(struct scan *scan, void *old, size_t count, size_t size)
{
    void *new = realloc(old, count * size);
    scan->no_memory |= new == NULL;
    return new;
}

static void skip_space(struct scan *scan)
{
    while (scan->at < scan->end && (*scan->at == ' ' || *scan->at == '\n' || *scan->at == '\r' || *scan->at == '\t'))
        scan->at++;
}

/* Whether the next byte is `expected`, which is then consumed. */
static bool take(struct scan *scan, byte expected)
{
    if (scan->at == scan->end || *scan->at != expected)
        return false;
    scan->at++;
    return true;
}

static size_t left(const struct scan *scan)
{
    return (size_t)(scan->end - scan->at);
}

static bool is_digit(const struct scan *scan)
{
    return scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9';
}

/* ---- Strings. */

static int hex(byte letter)
{
    if (letter >= '0' && letter <= '9')
        return letter - '0';
    letter |= 0x20;
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

/* The code unit of the four digits at `at`, -1 where they are none. */
static int code_unit(const byte *at)
{
    int unit = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex(at[i]);
        if (digit < 0)
            return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

/* Passes over an escape. A surrogate without its partner is refused. */
static bool skip_escape(struct scan *scan)
{
    if (left(scan) < 2)
        return false;
    byte letter = scan->at[1];
    if (letter != 'u') {
        scan->at += 2;
        return letter != 0 && strchr("\"\\/bfnrt", letter) != NULL;
    }
    if (left(scan) < 6)
        return false;
    int unit = code_unit(scan->at + 2);
    scan->at += 6;
    if (unit < 0xD800 || unit > 0xDFFF)
        return unit >= 0;
    if (unit > 0xDBFF || left(scan) < 6 || scan->at[0] != '\\' || scan->at[1] != 'u')
        return false;
    unit = code_unit(scan->at + 2);
    scan->at += 6;
    return unit >= 0xDC00 && unit <= 0xDFFF;
}

/* Passes over one character of several bytes, as strictly as Python's decoder of UTF-8. */
static bool skip_character(struct scan *scan)
{
    byte lead = scan->at[0];
    size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead < 0xC2 || lead > 0xF4 || left(scan) < length)
        return false;
    byte least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    byte most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (scan->at[1] < least || scan->at[1] > most)
        return false;
    for (size_t i = 2; i < length; i++)
        if ((scan->at[i] & 0xC0) != 0x80)
            return false;
    scan->at += length;
    return true;
}

/* The number of bytes below the lowest one whose high bit is set in `found`. */
static size_t plain_bytes(uint64_t found)
{
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (size_t)__builtin_ctzll(found) / 8;
#else
    (void)found;
    return 0; /* the bytes are looked at one by one */
#endif
}

/* Passes over bytes that are neither quotes, backslashes, control characters nor beyond ASCII. */
static void skip_plain(struct scan *scan)
{
    const uint64_t each = UINT64_MAX / 255, high = each << 7;
    while (left(scan) >= 8) {
        uint64_t word;
        memcpy(&word, scan->at, 8);
        uint64_t quotes = (word ^ each * '"') - each, slashes = (word ^ each * '\\') - each;
        uint64_t found = (word | quotes | slashes | (word - each * 0x20)) & high;
        if (found) {
            /* A borrow marks bytes above the first found, never below it. */
            scan->at += plain_bytes(found);
            break;
        }
        scan->at += 8;
    }
    while (scan->at < scan->end) {
        byte letter = *scan->at;
        if (letter == '"' || letter == '\\' || letter < 0x20 || letter >= 0x80)
            break;
        scan->at++;
    }
}

static bool read_string(struct scan *scan, struct span *text)
{
    if (!take(scan, '"'))
        return false;
    text->start = scan->at;
    text->escaped = false;
    for (;;) {
        skip_plain(scan);
        if (scan->at == scan->end || *scan->at < 0x20)
            return false;
        if (*scan->at == '"') {
            text->length = (size_t)(scan->at - text->start);
            scan->at++;
            return true;
        }
        if (*scan->at == '\\') {
            text->escaped = true;
            if (!skip_escape(scan))
                return false;
        } else if (!skip_character(scan)) {
            return false;
        }
    }
}

static byte *put_character(byte *to, unsigned code)
{
    if (code < 0x80) {
        *to++ = (byte)code;
    } else if (code < 0x800) {
        *to++ = (byte)(0xC0 | code >> 6);
        *to++ = (byte)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *to++ = (byte)(0xE0 | code >> 12);
        *to++ = (byte)(0x80 | (code >> 6 & 0x3F));
        *to++ = (byte)(0x80 | (code & 0x3F));
    } else {
        *to++ = (byte)(0xF0 | code >> 18);
        *to++ = (byte)(0x80 | (code >> 12 & 0x3F));
        *to++ = (byte)(0x80 | (code >> 6 & 0x3F));
        *to++ = (byte)(0x80 | (code & 0x3F));
    }
    return to;
}

/* Decodes the escapes of a string that has been read. A decoded text is shorter than its escapes, so
 * all of them fit in as many bytes as the scanned text has. */
static bool decode_escapes(struct scan *scan, struct span *text)
{
    if (scan->decoded == NULL) {
        scan->decoded = scan->decoded_end = grown(scan, NULL, scan->longest, 1);
        if (scan->decoded == NULL)
            return false;
    }
    if (text->length > scan->longest - (size_t)(scan->decoded_end - scan->decoded))
        return false;
    byte *to = scan->decoded_end;
    const byte *at = text->start, *end = text->start + text->length;
    while (at < end) {
        if (*at != '\\') {
            *to++ = *at++;
        } else if (at[1] != 'u') {
            static const char letters[] = "bfnrt", meant[] = "\b\f\n\r\t";
            const char *found = strchr(letters, at[1]);
            *to++ = found == NULL ? at[1] : (byte)meant[found - letters];
            at += 2;
        } else {
            unsigned code = (unsigned)code_unit(at + 2);
            at += 6;
            if (code >= 0xD800 && code <= 0xDFFF) {
                code = 0x10000 + ((code - 0xD800) << 10) + ((unsigned)code_unit(at + 2) - 0xDC00);
                at += 6;
            }
            to = put_character(to, code);
        }
    }
    text->start = scan->decoded_end;
    text->length = (size_t)(to - scan->decoded_end);
    text->escaped = false;
    scan->decoded_end = to;
    return true;
}

/* ---- Values that are passed over. They are checked as strictly as those that are read. */

static bool skip_literal(struct scan *scan, const char *word)
{
    size_t length = strlen(word);
    if (left(scan) < length || memcmp(scan->at, word, length) != 0)
        return false;
    scan->at += length;
    return true;
}

static bool skip_digits(struct scan *scan)
{
    if (!is_digit(scan))
        return false;
    while (is_digit(scan))
        scan->at++;
    return true;
}

static bool skip_number(struct scan *scan)
{
    take(scan, '-');
    if (!take(scan, '0') && !skip_digits(scan))
        return false;
    if (take(scan, '.') && !skip_digits(scan))
        return false;
    if (take(scan, 'e') || take(scan, 'E')) {
        if (!take(scan, '+'))
            take(scan, '-');
        return skip_digits(scan);
    }
    return true;
}

static bool skip_key(struct scan *scan)
{
    struct span key;
    skip_space(scan);
    if (!read_string(scan, &key))
        return false;
    skip_space(scan);
    return take(scan, ':');
}

static bool skip_simple(struct scan *scan)
{
    struct span text;
    switch (*scan->at) {
    case '"':
        return read_string(scan, &text);
    case 't':
        return skip_literal(scan, "true");
    case 'f':
        return skip_literal(scan, "false");
    case 'n':
        return skip_literal(scan, "null");
    default:
        return skip_number(scan);
    }
}

static bool skip_value(struct scan *scan)
{
    uint64_t objects = 0; /* the lowest bit: whether the innermost level is an object */
    int depth = 0;
    for (;;) {
        skip_space(scan);
        if (scan->at == scan->end)
            return false;
        bool object = *scan->at == '{';
        if (object || *scan->at == '[') {
            scan->at++;
            skip_space(scan);
            if (!take(scan, object ? '}' : ']')) {
                if (++depth > DEEPEST || (object && !skip_key(scan)))
                    return false;
                objects = objects << 1 | object;
                continue;
            }
        } else if (!skip_simple(scan)) {
            return false;
        }
        for (;; depth--, objects >>= 1) { /* a value has ended, and perhaps levels around it */
            if (depth == 0)
                return true;
            skip_space(scan);
            if (take(scan, ',')) {
                if ((objects & 1) && !skip_key(scan))
                    return false;
                break;
            }
            if (!take(scan, objects & 1 ? '}' : ']'))
                return false;
        }
    }
}

/* ---- Values that are read. */

/* Whether the number goes on with a fraction or an exponent. */
static bool goes_on(const struct scan *scan)
{
    return scan->at < scan->end && (*scan->at == '.' || *scan->at == 'e' || *scan->at == 'E');
}

/* Reads an integer of 64 bits; an unsigned one keeps its bits. */
static bool read_integer(struct scan *scan, int64_t *number)
{
    bool negative = take(scan, '-');
    bool zero = scan->at < scan->end && *scan->at == '0';
    const byte *first = scan->at;
    uint64_t sum = 0;
    for (; is_digit(scan); scan->at++) {
        unsigned digit = *scan->at - '0';
        if (sum > (UINT64_MAX - digit) / 10)
            return false;
        sum = sum * 10 + digit;
    }
    size_t digits = (size_t)(scan->at - first);
    if (digits == 0 || (zero && digits > 1) || goes_on(scan))
        return false;
    if (negative && (sum > INT64_MAX || sum == 0)) /* -0 is a float to Python's decoder */
        return false;
    sum = negative ? 0 - sum : sum;
    memcpy(number, &sum, sizeof sum);
    return *number != NO_NUMBER;
}

/* Reads a decimal number of microseconds as nanoseconds, half of one rounded to the even. */
static bool read_time(struct scan *scan, int64_t *nanoseconds)
{
    enum { MOST_DIGITS = 15, MOST_DECIMALS = 18 };
    bool negative = take(scan, '-');
    bool zero = scan->at < scan->end && *scan->at == '0';
    int64_t sum = 0;
    int digits = 0, decimals = 0;
    for (; is_digit(scan); scan->at++, digits++) {
        if (digits > MOST_DIGITS)
            return false;
        sum = sum * 10 + (*scan->at - '0');
    }
    if (digits == 0 || (zero && digits > 1) || sum > INT64_MAX / 1000 - 1)
        return false;
    int dropped = 0; /* the fourth decimal, twice, and one more if any decimal follows */
    if (take(scan, '.')) {
        for (; is_digit(scan); scan->at++, decimals++) {
            int digit = *scan->at - '0';
            if (decimals < 3)
                sum = sum * 10 + digit;
            else if (decimals == 3)
                dropped = 2 * digit;
            else if (decimals == MOST_DECIMALS)
                return false;
            else
                dropped |= digit != 0;
        }
        if (decimals == 0)
            return false;
    }
    if (goes_on(scan))
        return false;
    for (; decimals < 3; decimals++)
        sum *= 10;
    sum += dropped > 10 || (dropped == 10 && (sum & 1));
    *nanoseconds = negative ? -sum : sum;
    return true;
}

/* Reads a list of integers; the first three are kept. */
static bool read_list(struct scan *scan, struct value *value)
{
    value->count = 0;
    if (!take(scan, '['))
        return false;
    skip_space(scan);
    if (take(scan, ']'))
        return true;
    for (;;) {
        int64_t number;
        skip_space(scan);
        if (!read_integer(scan, &number))
            return false;
        if (value->count < 3)
            value->number[value->count++] = number;
        skip_space(scan);
        if (take(scan, ']'))
            return true;
        if (!take(scan, ','))
            return false;
    }
}

static bool read_raw(struct scan *scan, struct span *text)
{
    text->start = scan->at;
    text->escaped = false;
    if (!skip_value(scan))
        return false;
    text->length = (size_t)(scan->at - text->start);
    return true;
}

/* Reads the value of a field; `state` is what it holds. */
static bool read_value(struct scan *scan, char kind, byte *state, struct value *value)
{
    if (scan->at == scan->end)
        return false;
    byte letter = *scan->at;
    if (kind == 'r') {
        *state = RAW;
        return read_raw(scan, &value->text);
    }
    if (letter == 'n') {
        *state = NONE;
        return kind != 's' && skip_literal(scan, "null");
    }
    if (letter == '"') {
        *state = STRING;
        return kind != 't' && read_string(scan, &value->text);
    }
    if (kind == 't') {
        *state = NUMBER;
        return read_time(scan, &value->number[0]);
    }
    if (kind == 'i' || (kind == 'a' && (letter == '-' || (letter >= '0' && letter <= '9')))) {
        *state = NUMBER;
        return read_integer(scan, &value->number[0]);
    }
    if (kind == 'a' && letter == '[') {
        *state = LIST;
        return read_list(scan, value);
    }
    *state = OTHER;
    return kind == 'a' && skip_literal(scan, letter == 't' ? "true" : "false");
}

/* ---- Events. */

static unsigned bucket_of(const byte *key, size_t length)
{
    return ((unsigned)length * 31 + key[0] * 7u + key[length - 1] * 13u + key[length / 2]) % BUCKETS;
}

static int field_of(const struct plan *plan, const struct keys *keys, const struct span *key)
{
    if (key->length == 0)
        return NO_FIELD;
    for (unsigned i = bucket_of(key->start, key->length); keys->buckets[i] != NO_KEY; i = (i + 1) % BUCKETS) {
        const struct field *field = &plan->field[keys->buckets[i]];
        if (field->length == key->length && memcmp(field->key, key->start, key->length) == 0)
            return keys->buckets[i];
    }
    return NO_FIELD;
}

/* Reads the fields of an object up to its end; stops at `args`, an object in the event. */
static bool read_fields(struct scan *scan, const struct keys *keys, bool *at_arguments)
{
    const struct plan *plan = scan->plan;
    for (;;) {
        struct span key;
        skip_space(scan);
        if (!read_string(scan, &key) || key.escaped)
            return false;
        skip_space(scan);
        if (!take(scan, ':'))
            return false;
        skip_space(scan);
        int field = field_of(plan, keys, &key);
        if (field == NO_FIELD) {
            if (!skip_value(scan))
                return false;
        } else if (scan->state[field] != ABSENT) {
            return false; /* doubled */
        } else if (field == plan->arguments) {
            scan->state[field] = OTHER;
            *at_arguments = true;
            return true;
        } else if (!read_value(scan, plan->field[field].kind, &scan->state[field], &scan->value[field])) {
            return false;
        }
        skip_space(scan);
        if (take(scan, '}'))
            return true;
        if (!take(scan, ','))
            return false;
    }
}

static bool read_arguments(struct scan *scan)
{
    bool nested = false;
    if (!take(scan, '{'))
        return false;
    skip_space(scan);
    return take(scan, '}') || read_fields(scan, &scan->plan->argument, &nested);
}

static bool read_event(struct scan *scan)
{
    memset(scan->state, ABSENT, sizeof scan->state);
    if (!take(scan, '{'))
        return false;
    skip_space(scan);
    if (take(scan, '}'))
        return true;
    for (;;) {
        bool at_arguments = false;
        if (!read_fields(scan, &scan->plan->event, &at_arguments))
            return false;
        if (!at_arguments)
            return true;
        struct span *arguments = &scan->value[scan->plan->arguments].text;
        arguments->start = scan->at;
        arguments->escaped = false;
        if (!read_arguments(scan))
            return false;
        arguments->length = (size_t)(scan->at - arguments->start);
        scan->state[scan->plan->arguments] = RAW;
        skip_space(scan);
        if (take(scan, '}'))
            return true;
        if (!take(scan, ','))
            return false;
    }
}

/* ---- Distinct texts. */

static uint64_t hash_of(const byte *text, size_t length, uint64_t seed)
{
    const uint64_t factor = 0x9E3779B97F4A7C15u;
    uint64_t hash = seed ^ length * factor;
    for (; length >= 8; text += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, text, 8);
        hash = (hash ^ word) * factor;
        hash ^= hash >> 29;
    }
    uint64_t word = 0;
    for (size_t i = 0; i < length; i++)
        word |= (uint64_t)text[i] << 8 * i;
    hash = (hash ^ word) * factor;
    return hash ^ hash >> 32;
}

static bool enlarge(struct scan *scan, struct texts *texts)
{
    size_t capacity = texts->capacity ? texts->capacity * 2 : 256, buckets = capacity * 2;
    struct span *all = grown(scan, texts->all, capacity, sizeof *all);
    if (all == NULL)
        return false;
    texts->all = all;
    uint64_t *hashes = grown(scan, texts->hashes, capacity, sizeof *hashes);
    if (hashes == NULL)
        return false;
    texts->hashes = hashes;
    uint32_t *new = grown(scan, texts->buckets, buckets, sizeof *new);
    if (new == NULL)
        return false;
    texts->buckets = new;
    texts->capacity = capacity;
    texts->mask = buckets - 1;
    memset(new, 0, buckets * sizeof *new);
    for (size_t i = 0; i < texts->count; i++) {
        size_t bucket = hashes[i] & texts->mask;
        while (new[bucket])
            bucket = (bucket + 1) & texts->mask;
        new[bucket] = (uint32_t)(i + 1);
    }
    return true;
}

/* Sets `code` to the number of a text among the distinct ones. */
static bool number_text(struct scan *scan, struct texts *texts, const struct span *text, uint32_t *code)
{
    if (texts->count == texts->capacity && !enlarge(scan, texts))
        return false;
    uint64_t hash = hash_of(text->start, text->length, scan->plan->seed);
    size_t bucket = hash & texts->mask;
    for (int probes = 0; texts->buckets[bucket]; bucket = (bucket + 1) & texts->mask) {
        size_t i = texts->buckets[bucket] - 1;
        if (texts->hashes[i] == hash && texts->all[i].length == text->length &&
            memcmp(texts->all[i].start, text->start, text->length) == 0) {
            *code = (uint32_t)(i + 1);
            return true;
        }
        if (++probes == MOST_PROBES)
            return false;
    }
    texts->all[texts->count] = *text;
    texts->hashes[texts->count] = hash;
    *code = texts->buckets[bucket] = (uint32_t)++texts->count;
    return true;
}

/* ---- Rows. */

/* The number at the end of a text such as "stream 7", as event_decoder.integers finds it. */
static bool trailing_number(const struct span *text, int64_t *number)
{
    enum { MOST_DIGITS = 18 };
    const byte *first = text->start + text->length;
    if (text->escaped || (text->length > 1 && memcmp(text->start, "0x", 2) == 0))
        return false;
    for (size_t i = 0; i < text->length; i++)
        if (text->start[i] >= 0x80)
            return false;
    while (first > text->start && first[-1] >= '0' && first[-1] <= '9')
        first--;
    size_t digits = (size_t)(text->start + text->length - first);
    if (digits > MOST_DIGITS)
        return false;
    int64_t sum = 0;
    for (size_t i = 0; i < digits; i++)
        sum = sum * 10 + (first[i] - '0');
    bool minus = first > text->start && first[-1] == '-';
    bool range = minus && first - 1 > text->start && first[-2] >= '0' && first[-2] <= '9';
    *number = digits == 0 ? NO_NUMBER : minus && !range ? -sum : sum;
    return true;
}

/* The number of a cell, NO_NUMBER without one. */
static bool number_cell(const struct value *value, byte state, char kind, int64_t *number)
{
    *number = NO_NUMBER;
    if (state <= NONE)
        return true;
    if (kind >= 'x' && kind <= 'z') {
        int axis = kind - 'x';
        if (state == LIST && axis < value->count)
            *number = value->number[axis];
        return state == LIST;
    }
    if (state == NUMBER)
        *number = value->number[0];
    return state == NUMBER || (kind == 'i' && state == STRING && trailing_number(&value->text, number));
}

/* The code of a text's cell, 0 without one. */
static bool text_cell(struct scan *scan, const struct value *value, byte state, uint32_t *code)
{
    struct span text = value->text;
    *code = 0;
    if (state <= NONE)
        return true;
    if (state == RAW)
        return number_text(scan, &scan->raws, &text, code);
    if (state == NUMBER)
        return true;
    if (state != STRING)
        return false;
    if (!text.escaped)
        return number_text(scan, &scan->texts, &text, code);
    size_t known = scan->texts.count;
    if (!decode_escapes(scan, &text) || !number_text(scan, &scan->texts, &text, code))
        return false;
    if (scan->texts.count == known) /* not a new one: its bytes are free again */
        scan->decoded_end -= text.length;
    return true;
}

static bool is_text(char kind)
{
    return kind == 's' || kind == 'r';
}

static bool more_rows(struct scan *scan, const struct frame *frame, struct rows *rows)
{
    size_t capacity = rows->capacity ? rows->capacity * 2 : 256;
    for (int i = 0; i < frame->columns; i++) {
        size_t size = is_text(frame->column[i].kind) ? sizeof(uint32_t) : sizeof(int64_t);
        void *data = grown(scan, rows->cells[i].data, capacity, size);
        if (data == NULL)
            return false;
        rows->cells[i].data = data;
    }
    rows->capacity = capacity;
    return true;
}

static bool add_row(struct scan *scan, int number)
{
    const struct frame *frame = &scan->plan->frame[number];
    struct rows *rows = &scan->rows[number];
    if (rows->count == rows->capacity && !more_rows(scan, frame, rows))
        return false;
    for (int i = 0; i < frame->columns; i++) {
        const struct column *column = &frame->column[i];
        struct cells *cells = &rows->cells[i];
        int field = column->first;
        if (column->second != NO_FIELD && scan->state[field] <= NONE)
            field = column->second;
        if (is_text(column->kind)) {
            uint32_t code;
            if (!text_cell(scan, &scan->value[field], scan->state[field], &code))
                return false;
            ((uint32_t *)cells->data)[rows->count] = code;
            cells->nulls += code == 0;
        } else {
            int64_t cell;
            if (!number_cell(&scan->value[field], scan->state[field], column->kind, &cell))
                return false;
            ((int64_t *)cells->data)[rows->count] = cell;
            cells->nulls += cell == NO_NUMBER;
        }
    }
    rows->count++;
    return true;
}

/* ---- Routes: what becomes of the events of a phase and category. */

static bool same_lowered(const struct span *text, const char *lowered)
{
    if (text->length != strlen(lowered))
        return false;
    for (size_t i = 0; i < text->length; i++) {
        byte letter = text->start[i];
        letter = letter >= 'A' && letter <= 'Z' ? letter | 0x20 : letter;
        if (letter != (byte)lowered[i])
            return false;
    }
    return true;
}

static const struct rule *rule_of(const struct plan *plan, const struct route *route)
{
    const struct rule *of_phase = NULL;
    for (int i = 0; i < plan->rules; i++) {
        const struct rule *rule = &plan->rule[i];
        size_t length = strlen(rule->phase);
        if (route->phase.length != length || memcmp(route->phase.start, rule->phase, length) != 0)
            continue;
        if (rule->category == NULL)
            of_phase = rule;
        else if (same_lowered(&route->category, rule->category))
            return rule;
    }
    return of_phase;
}

/* Whether a text is ASCII without escapes: others have lower-case letters of their own. */
static bool is_simple(const struct span *text)
{
    for (size_t i = 0; i < text->length; i++)
        if (text->start[i] >= 0x80)
            return false;
    return !text->escaped;
}

static bool same(const struct span *one, const struct span *other)
{
    if (one->length != other->length || (one->start == NULL) != (other->start == NULL))
        return false;
    /* The last letters differ where the first do not: gpu_memcpy, gpu_memset. */
    return one->length == 0 || (one->start[one->length - 1] == other->start[one->length - 1] &&
                                memcmp(one->start, other->start, one->length) == 0);
}

static bool find_route(struct scan *scan, struct route **found)
{
    static const struct span null;
    const struct plan *plan = scan->plan;
    if (scan->state[plan->phase] != STRING && scan->state[plan->phase] != ABSENT)
        return false;
    const struct span *phase = scan->state[plan->phase] == STRING ? &scan->value[plan->phase].text : &null;
    const struct span *category = scan->state[plan->category] == STRING ? &scan->value[plan->category].text : &null;
    for (int i = 0; i < scan->routes; i++) {
        *found = &scan->route[i];
        if (same(&(*found)->phase, phase) && same(&(*found)->category, category))
            return true;
    }
    if (scan->routes == MOST_ROUTES || !is_simple(phase) || !is_simple(category))
        return false;
    *found = &scan->route[scan->routes++];
    (*found)->phase = *phase;
    (*found)->category = *category;
    const struct rule *rule = rule_of(plan, *found);
    (*found)->frame = rule == NULL ? LEFT_OUT : rule->frame;
    (*found)->least = rule == NULL ? 0 : rule->least;
    return true;
}

static bool has_row(const struct scan *scan, const struct route *route)
{
    int id = scan->plan->id;
    if (route->frame == LEFT_OUT || route->least == 0)
        return route->frame != LEFT_OUT;
    return id != NO_FIELD && scan->state[id] == NUMBER && scan->value[id].number[0] >= route->least;
}

static bool scan_text(struct scan *scan)
{
    skip_space(scan);
    if (scan->at == scan->end)
        return true;
    for (;;) {
        struct route *route;
        skip_space(scan);
        if (!read_event(scan) || !find_route(scan, &route))
            return false;
        scan->events++;
        route->events++;
        if (has_row(scan, route) && !add_row(scan, route->frame))
            return false;
        skip_space(scan);
        if (scan->at == scan->end)
            return true;
        if (!take(scan, ','))
            return false;
    }
}

/* ---- The result as Python's objects. */

static PyObject *text_object(const struct span *text)
{
    if (text->start == NULL)
        return Py_NewRef(Py_None);
    return PyUnicode_DecodeUTF8((const char *)text->start, (Py_ssize_t)text->length, NULL);
}

static PyObject *texts_object(const struct texts *texts)
{
    PyObject *list = PyList_New((Py_ssize_t)texts->count + 1);
    if (list == NULL)
        return NULL;
    PyList_SetItem(list, 0, Py_NewRef(Py_None));
    for (size_t i = 0; i < texts->count; i++) {
        PyObject *text = text_object(&texts->all[i]);
        if (text == NULL) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SetItem(list, (Py_ssize_t)i + 1, text);
    }
    return list;
}

static PyObject *routes_object(const struct scan *scan)
{
    PyObject *list = PyList_New(scan->routes);
    for (int i = 0; list != NULL && i < scan->routes; i++) {
        const struct route *route = &scan->route[i];
        PyObject *entry = Py_BuildValue("(NNin)", text_object(&route->phase), text_object(&route->category),
                                        route->frame, (Py_ssize_t)route->events);
        if (entry == NULL)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, i, entry);
    }
    return list;
}

/* (bytes of the cells, how many are null); None where all are. */
static PyObject *cells_object(const struct cells *cells, size_t rows, char kind)
{
    size_t size = is_text(kind) ? sizeof(uint32_t) : sizeof(int64_t);
    if (cells->nulls == rows)
        return Py_NewRef(Py_None);
    /* No format with #: what the headers of Python 3.13 make of it fails in earlier ones. */
    PyObject *data = PyBytes_FromStringAndSize((const char *)cells->data, (Py_ssize_t)(rows * size));
    return data == NULL ? NULL : Py_BuildValue("(Nn)", data, (Py_ssize_t)cells->nulls);
}

static PyObject *rows_object(const struct frame *frame, const struct rows *rows)
{
    PyObject *list = PyList_New(frame->columns);
    for (int i = 0; list != NULL && i < frame->columns; i++) {
        PyObject *cells = cells_object(&rows->cells[i], rows->count, frame->column[i].kind);
        if (cells == NULL)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, i, cells);
    }
    return list == NULL ? NULL : Py_BuildValue("(nN)", (Py_ssize_t)rows->count, list);
}

static PyObject *frames_object(const struct scan *scan)
{
    PyObject *list = PyList_New(scan->plan->frames);
    for (int i = 0; list != NULL && i < scan->plan->frames; i++) {
        PyObject *rows = rows_object(&scan->plan->frame[i], &scan->rows[i]);
        if (rows == NULL)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, i, rows);
    }
    return list;
}

static void free_texts(struct texts *texts)
{
    free(texts->all);
    free(texts->hashes);
    free(texts->buckets);
}

static void free_scan(struct scan *scan)
{
    free_texts(&scan->texts);
    free_texts(&scan->raws);
    free(scan->decoded);
    for (int i = 0; i < MOST_FRAMES; i++)
        for (int j = 0; j < MOST_COLUMNS; j++)
            free(scan->rows[i].cells[j].data);
    free(scan);
}

/* ---- The plan from Python's objects. */

static const char PLAN[] = "traceana.plan";

static char *copied(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = malloc(size);
    return copy == NULL ? NULL : memcpy(copy, text, size);
}

static void free_plan(struct plan *plan)
{
    for (int i = 0; i < MOST_FIELDS; i++)
        free(plan->field[i].key);
    for (int i = 0; i < MOST_RULES; i++) {
        free(plan->rule[i].phase);
        free(plan->rule[i].category);
    }
    free(plan);
}

static void free_capsule(PyObject *capsule)
{
    free_plan(PyCapsule_GetPointer(capsule, PLAN));
}

static bool add_field(struct plan *plan, PyObject *entry)
{
    int argument, kind;
    const char *key;
    struct field *field = &plan->field[plan->fields];
    if (!PyArg_ParseTuple(entry, "psC", &argument, &key, &kind))
        return false;
    field->key = copied(key);
    field->length = strlen(key);
    field->kind = (char)kind;
    if (field->key == NULL || field->length == 0)
        return false;
    byte *buckets = argument ? plan->argument.buckets : plan->event.buckets;
    unsigned bucket = bucket_of((const byte *)key, field->length);
    while (buckets[bucket] != NO_KEY)
        bucket = (bucket + 1) % BUCKETS;
    buckets[bucket] = (byte)plan->fields;
    if (!argument && strcmp(key, "ph") == 0)
        plan->phase = plan->fields;
    if (!argument && strcmp(key, "cat") == 0)
        plan->category = plan->fields;
    if (!argument && strcmp(key, "args") == 0)
        plan->arguments = plan->fields;
    if (!argument && strcmp(key, "id") == 0)
        plan->id = plan->fields;
    plan->fields++;
    return true;
}

static bool add_frame(struct plan *plan, PyObject *columns)
{
    struct frame *frame = &plan->frame[plan->frames];
    Py_ssize_t count = PyList_Size(columns);
    if (count < 0 || count > MOST_COLUMNS)
        return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        struct column *column = &frame->column[frame->columns++];
        int kind;
        if (!PyArg_ParseTuple(PyList_GetItem(columns, i), "Cii", &kind, &column->first, &column->second))
            return false;
        column->kind = (char)kind;
        if (column->first < 0 || column->first >= plan->fields || column->second < NO_FIELD ||
            column->second >= plan->fields)
            return false;
    }
    plan->frames++;
    return true;
}

static bool add_rule(struct plan *plan, PyObject *entry)
{
    const char *phase, *category;
    struct rule *rule = &plan->rule[plan->rules];
    long long least;
    if (!PyArg_ParseTuple(entry, "sziL", &phase, &category, &rule->frame, &least))
        return false;
    rule->least = least;
    rule->phase = copied(phase);
    rule->category = category == NULL ? NULL : copied(category);
    plan->rules++;
    return rule->phase != NULL && (category == NULL || rule->category != NULL) && rule->frame >= LEFT_OUT &&
           rule->frame < plan->frames;
}

static bool add_all(struct plan *plan, PyObject *list, Py_ssize_t most, bool (*add)(struct plan *, PyObject *))
{
    Py_ssize_t count = PyList_Size(list);
    if (count < 0 || count > most)
        return false;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!add(plan, PyList_GetItem(list, i)))
            return false;
    return true;
}

PyObject *json_plan(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *fields, *frames, *rules;
    Py_ssize_t seed;
    if (!PyArg_ParseTuple(args, "OOOn", &fields, &frames, &rules, &seed))
        return NULL;
    struct plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return PyErr_NoMemory();
    plan->phase = plan->category = plan->arguments = plan->id = NO_FIELD;
    plan->seed = (uint64_t)seed;
    memset(plan->event.buckets, NO_KEY, BUCKETS);
    memset(plan->argument.buckets, NO_KEY, BUCKETS);
    bool made = add_all(plan, fields, MOST_FIELDS, add_field) && add_all(plan, frames, MOST_FRAMES, add_frame) &&
                add_all(plan, rules, MOST_RULES, add_rule);
    if (made && plan->phase >= 0 && plan->category >= 0 && plan->arguments >= 0) {
        PyObject *capsule = PyCapsule_New(plan, PLAN, free_capsule);
        if (capsule != NULL)
            return capsule;
    }
    free_plan(plan);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the plan is not valid");
    return NULL;
}

PyObject *json_events(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *bytes, *result = NULL;
    char *text;
    Py_ssize_t size, stop;
    if (!PyArg_ParseTuple(args, "OSn", &capsule, &bytes, &stop) || PyBytes_AsStringAndSize(bytes, &text, &size) < 0)
        return NULL;
    const struct plan *plan = PyCapsule_GetPointer(capsule, PLAN);
    if (plan == NULL)
        return NULL;
    size = stop < 0 ? 0 : stop < size ? stop : size;
    if ((size_t)size > LONGEST)
        return Py_NewRef(Py_None);
    struct scan *scan = calloc(1, sizeof *scan);
    if (scan == NULL)
        return PyErr_NoMemory();
    scan->plan = plan;
    scan->at = (const byte *)text;
    scan->end = scan->at + size;
    scan->longest = (size_t)size;
    PyThreadState *thread = PyEval_SaveThread();
    bool accepted = scan_text(scan);
    PyEval_RestoreThread(thread);
    if (accepted)
        result = Py_BuildValue("(nNNNN)", (Py_ssize_t)scan->events, routes_object(scan), frames_object(scan),
                               texts_object(&scan->texts), texts_object(&scan->raws));
    else
        result = scan->no_memory ? PyErr_NoMemory() : Py_NewRef(Py_None);
    free_scan(scan);
    return result;
}
