/* Decodes the events of XPlane's lines into columns, in one pass.
 *
 * It accepts events as profilers write them: the fields in the order of their numbers, tags of one
 * byte, and stats that are an id and then one value. Of any other event only the position is
 * returned, and the decoder in Python reads it (decode.py): damage, aggregates, fields of a newer
 * schema. So there is one implementation of what is repaired, lost or counted in the ledger.
 *
 * The bytes are hostile. A run ends at least `PADDING` bytes before the bytes do, and a position is
 * compared with the end of its run before it is read; an integer reads at most eleven bytes ahead.
 */

#include "scanner.h"

enum {
    PADDING = 32,
    MOST_STATS = 4096, /* of one event: more are left to the decoder in Python */
    DENSE = 1 << 20,   /* ids below this are looked up in a table, others by binary search */
    UNKNOWN = -2,      /* an id that the plane does not declare */
    METADATA_ID = 0x08,
    OFFSET_PS = 0x10,
    DURATION_PS = 0x18,
    RECORD = 0x22, /* an event of a line, and a stat of an event */
};

static const uint64_t BEYOND = (uint64_t)1 << 40;

enum wire { VARINT, FIXED64, LENGTH, NONE = 8 /* a wire type has three bits */ };

/* The wire type of each kind of value: the number of its field. */
static const byte WIRES[8] = {NONE, NONE, FIXED64, VARINT, VARINT, LENGTH, LENGTH, VARINT};

/* The arguments, arrays in this order: the bytes; begin, end and stop of each run; the next run and
 * position; the stats' ids; then what is filled, a row an event, and a row a stat. */
enum {
    DATA,
    BEGIN,
    END,
    STOP,
    STATE,
    IDS,
    CODES,
    RUN,
    ID,
    OFFSET,
    DURATION,
    ODD,
    OWNER,
    INDEX,
    KIND,
    VALUE,
    SIZE,
    ARRAYS,
};

static const byte WIDTHS[ARRAYS] = {1, 8, 8, 8, 8, 8, 4, 4, 8, 8, 8, 4, 4, 4, 1, 8, 4};

struct ids {
    const int64_t *sorted;
    const int32_t *codes; /* the index of a wanted stat, -1 of any other that is declared */
    size_t count;
    int32_t *dense;
    size_t most;
};

struct event {
    int64_t id, offset, duration;
};

struct scan {
    const byte *data;
    struct ids ids;
    uint32_t *owner, *index, *length;
    byte *kind;
    uint64_t *value;
    size_t stats, most_stats;
};

/* Return the number of bytes of the integer at `at`, more than a file has where it goes on after the
   tenth: whatever it is part of then reaches beyond its end. */
static size_t read_varint(const byte *at, uint64_t *value)
{
    uint64_t found = 0;
    for (unsigned i = 0; i < 9; i++) {
        found |= (uint64_t)(at[i] & 0x7F) << (7 * i);
        if (at[i] < 0x80) {
            *value = found;
            return i + 1;
        }
    }
    *value = found | (uint64_t)(at[9] & 1) << 63;
    return at[9] < 0x80 ? 10 : BEYOND;
}

static int32_t code_of(const struct ids *ids, int64_t id)
{
    if (ids->dense != NULL)
        return (uint64_t)id < ids->most ? ids->dense[id] : UNKNOWN;
    size_t low = 0, high = ids->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ids->sorted[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < ids->count && ids->sorted[low] == id ? ids->codes[low] : UNKNOWN;
}

static bool make_dense(struct ids *ids)
{
    if (ids->count == 0 || ids->sorted[0] < 0 || ids->sorted[ids->count - 1] >= DENSE)
        return true;
    ids->most = (size_t)ids->sorted[ids->count - 1] + 1;
    ids->dense = malloc(ids->most * sizeof *ids->dense);
    if (ids->dense == NULL)
        return false;
    for (size_t i = 0; i < ids->most; i++)
        ids->dense[i] = UNKNOWN;
    for (size_t i = 0; i < ids->count; i++)
        if ((uint64_t)ids->sorted[i] < ids->most)
            ids->dense[ids->sorted[i]] = ids->codes[i];
    return true;
}

/* Return the position after the field `tag` at `at`, with its value; `at` where it is not there. */
static int64_t read_number(const byte *data, int64_t at, int64_t end, byte tag, int64_t *value)
{
    uint64_t found;
    *value = 0;
    if (at >= end || data[at] != tag)
        return at;
    at += 1 + (int64_t)read_varint(data + at + 1, &found);
    *value = (int64_t)found;
    return at;
}

/* Return the start of the record at `at` and its end in `after`; -1 where it does not end by `end`. */
static int64_t read_record(const byte *data, int64_t at, int64_t end, int64_t *after)
{
    uint64_t size;
    if (data[at] != RECORD)
        return -1;
    at += 1 + (int64_t)read_varint(data + at + 1, &size);
    *after = at + (int64_t)(size < BEYOND ? size : BEYOND);
    return *after <= end ? at : -1;
}

/* Add the stat between `at` and `end` if it is wanted. Return whether it is regular. */
static bool read_stat(struct scan *scan, int64_t at, int64_t end, size_t owner)
{
    const byte *data = scan->data;
    int64_t id, value_at = read_number(data, at, end, METADATA_ID, &id);
    uint64_t value, length = 0;
    if (value_at == at || value_at >= end)
        return false;
    int32_t code = code_of(&scan->ids, id);
    if (code == -1)
        return true;
    byte kind = data[value_at] >> 3;
    if (kind >= sizeof WIRES || (data[value_at] & 7) != WIRES[kind])
        return false;
    int64_t after = value_at + 1;
    if (WIRES[kind] == FIXED64) {
        memcpy(&value, data + after, sizeof value);
        after += 8;
    } else {
        after += (int64_t)read_varint(data + after, &value);
    }
    if (WIRES[kind] == LENGTH) {
        length = value < BEYOND ? value : BEYOND;
        value = (uint64_t)after;
        after += (int64_t)length;
    }
    if (after != end || length > UINT32_MAX)
        return false;
    if (code == UNKNOWN)
        return true;
    size_t row = scan->stats++;
    scan->owner[row] = (uint32_t)owner;
    scan->index[row] = (uint32_t)code;
    scan->kind[row] = kind;
    scan->value[row] = value;
    scan->length[row] = (uint32_t)length;
    return true;
}

/* Read the event between `at` and `end`; return whether it is regular. */
static bool read_event(struct scan *scan, int64_t at, int64_t end, size_t row, struct event *event)
{
    const byte *data = scan->data;
    at = read_number(data, at, end, METADATA_ID, &event->id);
    at = read_number(data, at, end, OFFSET_PS, &event->offset);
    at = read_number(data, at, end, DURATION_PS, &event->duration);
    for (int stats = 0; at < end; stats++) {
        int64_t after, start = stats < MOST_STATS ? read_record(data, at, end, &after) : -1;
        if (start < 0 || !read_stat(scan, start, after, row))
            return false;
        at = after;
    }
    return at == end;
}

static void fill(struct scan *scan, Py_buffer *arrays, size_t rows[3])
{
    const int64_t *begin = arrays[BEGIN].buf, *end = arrays[END].buf;
    int64_t *stop = arrays[STOP].buf, *state = arrays[STATE].buf;
    uint32_t *run_of = arrays[RUN].buf, *odd = arrays[ODD].buf;
    int64_t *ids = arrays[ID].buf, *offsets = arrays[OFFSET].buf, *durations = arrays[DURATION].buf;
    size_t runs = (size_t)arrays[BEGIN].len / 8, most = (size_t)arrays[ID].len / 8;
    size_t run = (size_t)state[0], count = 0, odds = 0;
    int64_t at = state[1], after, start;
    while (run < runs) {
        for (; at < end[run]; at = after) {
            if (count == most || scan->stats + MOST_STATS > scan->most_stats)
                goto full;
            start = read_record(scan->data, at, end[run], &after);
            if (start < 0)
                break;
            struct event event;
            size_t before = scan->stats;
            if (!read_event(scan, start, after, count, &event)) {
                scan->stats = before;
                event.id = at; /* the decoder in Python begins at the tag */
                event.offset = event.duration = 0;
                odd[odds++] = (uint32_t)count;
            }
            run_of[count] = (uint32_t)run;
            ids[count] = event.id;
            offsets[count] = event.offset;
            durations[count] = event.duration;
            count++;
        }
        stop[run] = at;
        if (++run < runs)
            at = begin[run];
    }
full:
    state[0] = (int64_t)run;
    state[1] = at;
    rows[0] = count;
    rows[1] = odds;
    rows[2] = scan->stats;
}

/* Return whether the arrays fit each other, so that `fill` stays inside of them. */
static bool is_sound(Py_buffer *arrays)
{
    for (int i = 0; i < ARRAYS; i++)
        if (arrays[i].len % WIDTHS[i] || (uintptr_t)arrays[i].buf % WIDTHS[i])
            return false;
    const int64_t *begin = arrays[BEGIN].buf, *end = arrays[END].buf, *state = arrays[STATE].buf;
    Py_ssize_t runs = arrays[BEGIN].len / 8, most = arrays[ID].len / 8, stats = arrays[VALUE].len / 8;
    bool fits = arrays[END].len / 8 == runs && arrays[STOP].len / 8 == runs &&
                arrays[STATE].len / 8 == 2 && arrays[CODES].len / 4 == arrays[IDS].len / 8 &&
                arrays[RUN].len / 4 == most && arrays[OFFSET].len / 8 == most &&
                arrays[DURATION].len / 8 == most && arrays[ODD].len / 4 == most &&
                arrays[OWNER].len / 4 == stats && arrays[INDEX].len / 4 == stats &&
                arrays[KIND].len == stats && arrays[SIZE].len / 4 == stats;
    if (!fits || most == 0 || stats < MOST_STATS || state[0] < 0 || (state[0] < runs && state[1] < begin[state[0]]))
        return false;
    for (Py_ssize_t i = 0; i < runs; i++)
        if (begin[i] < 0 || end[i] < begin[i] || end[i] > arrays[DATA].len - PADDING)
            return false;
    return true;
}

PyObject *xplane_events(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer arrays[ARRAYS] = {0};
    struct scan scan = {0};
    PyObject *result = NULL;
    size_t rows[3];
    if (PyTuple_Size(args) != ARRAYS) {
        PyErr_SetString(PyExc_TypeError, "a number of arrays is expected");
        return NULL;
    }
    for (int i = 0; i < ARRAYS; i++) {
        int flags = i == STOP || i == STATE || i >= RUN ? PyBUF_WRITABLE : PyBUF_SIMPLE;
        if (PyObject_GetBuffer(PyTuple_GetItem(args, i), &arrays[i], flags) < 0)
            goto release;
    }
    if (!is_sound(arrays)) {
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
        goto release;
    }
    scan.data = arrays[DATA].buf;
    scan.ids.sorted = arrays[IDS].buf;
    scan.ids.codes = arrays[CODES].buf;
    scan.ids.count = (size_t)arrays[IDS].len / 8;
    scan.owner = arrays[OWNER].buf;
    scan.index = arrays[INDEX].buf;
    scan.kind = arrays[KIND].buf;
    scan.value = arrays[VALUE].buf;
    scan.length = arrays[SIZE].buf;
    scan.most_stats = (size_t)arrays[VALUE].len / 8;
    if (!make_dense(&scan.ids)) {
        PyErr_NoMemory();
        goto release;
    }
    PyThreadState *thread = PyEval_SaveThread();
    fill(&scan, arrays, rows);
    PyEval_RestoreThread(thread);
    free(scan.ids.dense);
    result = Py_BuildValue("(nnn)", (Py_ssize_t)rows[0], (Py_ssize_t)rows[1], (Py_ssize_t)rows[2]);
release:
    /* What was not obtained has no object, and its release does nothing. */
    for (int i = 0; i < ARRAYS; i++)
        PyBuffer_Release(&arrays[i]);
    return result;
}
