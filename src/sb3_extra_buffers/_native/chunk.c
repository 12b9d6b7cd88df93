/* Sealed chunks: their bytes, and what is checked before anybody reads from them. docs/format.md describes them. */
#include "coders.h"
#include "values.h"

#include <string.h>

static const uint8_t MAGIC[8] = {'S', 'B', '3', 'X', 'C', 'H', 'N', 'K'};
static const uint8_t END[8] = {'S', 'B', '3', 'X', 'C', 'E', 'N', 'D'};

enum {
    VERSION = 2,
    OLDEST_VERSION = 1,
    HEADER_BYTES = FT_CHUNK_HEADER,
    FOOTER_BYTES = 16, /* u64 size of the chunk, END */
    LANE_BYTES = 12,   /* u32 groups, u32 exceptions, u32 frames */
    /* Where numbers stand in the header. */
    AT_VERSION = 8,
    AT_HEADER = 12,
    AT_SIZE = 16,
    AT_FIRST_ROW = 24,
    AT_ROWS = 40,
    AT_STREAMS = 44,
    AT_VIEWS = 48,
    AT_FLAGS = 52,
    AT_SHIFT = 56,
    AT_ITEM = 60,
    AT_DEPTH = 64,
    AT_PLANES = 68,
    AT_OUTER = 72,
    AT_PART = 80,
    AT_ROW_BYTES = 88,
    AT_TRANSFORM = 96,   /* u32: what was done to frames before they were coded; 0 is nothing */
    AT_TABLES = 100,     /* u32: bytes of tables that coders and transforms share */
    AT_GROUPS = 104,     /* u32: of all streams */
    AT_EXCEPTIONS = 108, /* u32: likewise */
    AT_CLASSES = 112,    /* u32 */
    AT_DATA = 120,       /* u64: bytes of records */
    AT_DATA_SUM = 128,
    AT_INDEX_SUM = 132,
    AT_HEADER_SUM = 148, /* of all that stands before it */
};

enum { CAN_TURN = 1, INTERLEAVE = 2, REFERENCES = 4, PACKS = 8, ALL_FLAGS = 15 };

static size_t blocks_of(size_t rows) { return (rows + FT_BLOCK_ROWS - 1) / FT_BLOCK_ROWS; }

bool ft_init_rows(ft_rows *rows, const ft_schema *schema, int transform) {
    const ft_layout *layout = &schema->layout;
    const ft_method *method = &schema->method;
    if (!ft_check_layout(layout) || schema->n_streams < 1 || schema->n_streams > (size_t)INT32_MAX || schema->views < 1 ||
        schema->views > FT_MAX_VIEWS || method->shift > 7 || (!method->references && (method->shift > 0 || method->packs)) ||
        (transform == VALUES && !ft_can_have_values(layout))) {
        return false;
    }
    *rows = (ft_rows){.given = *layout, .method = *method, .n_streams = schema->n_streams, .views = schema->views};
    rows->transform = transform;
    rows->layout = transform == VALUES ? ft_find_coded_layout(layout) : *layout;
    rows->frame_bytes = rows->layout.outer * rows->layout.part;
    rows->given_bytes = layout->outer * layout->part;
    rows->obs_bytes = layout->depth * rows->given_bytes;
    rows->stride = ft_pad_size(rows->frame_bytes);
    rows->given_stride = ft_pad_size(rows->given_bytes);
    return true;
}

/* -- sealing -------------------------------------------------------------------------------------------------------------- */

typedef struct sizes {
    size_t data, groups, exceptions; /* bytes of records; amounts */
    size_t index;                    /* bytes of all that lies between the data and the footer */
} sizes;

static size_t tables_of(const ft_rows *rows) { return rows->n_values * rows->given.item; }

static sizes sizes_of(const ft_rows *rows) {
    sizes of = {rows->data_bytes, 0, 0, 0};
    for (size_t i = 0; i < rows->n_streams; i++) {
        of.data += rows->lanes[i].open_bytes;
        of.groups += rows->lanes[i].n_groups;
        of.exceptions += rows->lanes[i].n_exceptions;
    }
    of.index = rows->n_streams * (LANE_BYTES + blocks_of(rows->rows) * FT_COUNT_BYTES) + of.groups * FT_GROUP_BYTES +
               of.exceptions * FT_EXCEPTION_BYTES + rows->n_classes * ft_count_class_bytes(rows) + tables_of(rows);
    return of;
}

size_t ft_measure_chunk(const ft_rows *rows) {
    const sizes of = sizes_of(rows);
    return HEADER_BYTES + of.data + FT_READ_AHEAD + of.index + FOOTER_BYTES;
}

static uint8_t *append(uint8_t *out, const void *bytes, size_t size) {
    if (size > 0) {
        memcpy(out, bytes, size);
    }
    return out + size;
}

static void write_header(const ft_rows *rows, const sizes *of, uint64_t first_row, uint8_t *out) {
    const ft_layout *layout = &rows->given;
    memset(out, 0, HEADER_BYTES);
    memcpy(out, MAGIC, sizeof MAGIC);
    const size_t flags = (layout->can_turn ? CAN_TURN : 0u) | (layout->interleave ? INTERLEAVE : 0u) |
                         (rows->method.references ? REFERENCES : 0u) | (rows->method.packs ? PACKS : 0u);
    const struct {
        int at;
        size_t value;
    } words[] = {
        {AT_VERSION, VERSION},      {AT_HEADER, HEADER_BYTES},  {AT_ROWS, rows->rows},           {AT_STREAMS, rows->n_streams},
        {AT_VIEWS, rows->views},    {AT_FLAGS, flags},          {AT_SHIFT, rows->method.shift},  {AT_ITEM, layout->item},
        {AT_DEPTH, layout->depth},  {AT_PLANES, layout->planes}, {AT_GROUPS, of->groups},        {AT_EXCEPTIONS, of->exceptions},
        {AT_CLASSES, rows->n_classes}, {AT_TABLES, tables_of(rows)},
        {AT_TRANSFORM, rows->n_values > 0 ? VALUES : NO_TRANSFORM}, /* there are none where all frames are zeros */
    };
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        put_u32(out + words[k].at, words[k].value);
    }
    put_u64(out + AT_FIRST_ROW, first_row);
    put_u64(out + AT_SIZE, ft_measure_chunk(rows));
    put_u64(out + AT_OUTER, layout->outer);
    put_u64(out + AT_PART, layout->part);
    put_u64(out + AT_ROW_BYTES, layout->row);
    put_u64(out + AT_DATA, of->data);
}

void ft_write_chunk(const ft_rows *rows, uint64_t first_row, uint8_t *out) {
    const sizes of = sizes_of(rows);
    write_header(rows, &of, first_row, out);
    uint8_t *data = out + HEADER_BYTES, *at = data + rows->data_bytes;
    if (rows->data != data) {
        append(data, rows->data, rows->data_bytes);
    }
    for (size_t i = 0; i < rows->n_streams; i++) { /* groups that are open come last */
        const ft_lane *lane = &rows->lanes[i];
        uint8_t *record = at;
        at = append(at, lane->open, lane->open_bytes);
        if (lane->open_bytes > 0) {
            put_u32(record, lane->open_bytes - RECORD_HEADER);
            record[RECORD_CODER + 1] = (uint8_t)(lane->frames - get_u16(lane->groups + lane->n_groups * FT_GROUP_BYTES - 2));
        }
    }
    memset(at, 0, FT_READ_AHEAD);
    uint8_t *index = at + FT_READ_AHEAD;
    at = index;
    for (size_t i = 0; i < rows->n_streams; i++, at += LANE_BYTES) {
        put_u32(at, rows->lanes[i].n_groups);
        put_u32(at + 4, rows->lanes[i].n_exceptions);
        put_u32(at + 8, rows->lanes[i].frames);
    }
    size_t open = rows->data_bytes;
    for (size_t i = 0; i < rows->n_streams; i++) {
        at = append(at, rows->lanes[i].groups, rows->lanes[i].n_groups * FT_GROUP_BYTES);
        if (rows->lanes[i].open_bytes > 0) {
            put_u32(at - FT_GROUP_BYTES, open);
            open += rows->lanes[i].open_bytes;
        }
    }
    for (size_t i = 0; i < rows->n_streams; i++) {
        at = append(at, rows->lanes[i].exceptions, rows->lanes[i].n_exceptions * FT_EXCEPTION_BYTES);
    }
    for (size_t i = 0; i < rows->n_streams; i++) {
        at = append(at, rows->lanes[i].counts, blocks_of(rows->rows) * FT_COUNT_BYTES);
    }
    at = append(at, rows->classes, rows->n_classes * ft_count_class_bytes(rows));
    at = append(at, rows->values, tables_of(rows));
    put_u64(at, ft_measure_chunk(rows));
    memcpy(at + 8, END, sizeof END);
    put_u32(out + AT_DATA_SUM, ft_compute_checksum(data, of.data + FT_READ_AHEAD));
    put_u32(out + AT_INDEX_SUM, ft_compute_checksum(index, of.index + FOOTER_BYTES));
    put_u32(out + AT_HEADER_SUM, ft_compute_checksum(out, AT_HEADER_SUM));
}

/* -- opening one ---------------------------------------------------------------------------------------------------------- */

/* What is read from the header. */
typedef struct header {
    ft_schema schema;
    size_t rows, groups, exceptions, classes, tables;
    int transform;
    uint64_t data, first_row;
} header;

static const char *read_header(const uint8_t *bytes, size_t size, header *of) {
    if (size < sizeof MAGIC || memcmp(bytes, MAGIC, sizeof MAGIC) != 0) {
        return "it is no chunk of observations";
    }
    if (size < HEADER_BYTES + FT_READ_AHEAD + FOOTER_BYTES) {
        return "it is cut short";
    }
    if (get_u32(bytes + AT_VERSION) < OLDEST_VERSION || get_u32(bytes + AT_VERSION) > VERSION) {
        return "its version is not known; a newer version of the package may read it";
    }
    if (get_u32(bytes + AT_HEADER) != HEADER_BYTES || get_u32(bytes + AT_HEADER_SUM) != ft_compute_checksum(bytes, AT_HEADER_SUM)) {
        return "its header is damaged";
    }
    if (get_u64(bytes + AT_SIZE) != size) {
        return get_u64(bytes + AT_SIZE) > size ? "it is cut short" : "there is more than belongs to it";
    }
    const uint32_t flags = get_u32(bytes + AT_FLAGS);
    const uint64_t outer = get_u64(bytes + AT_OUTER), part = get_u64(bytes + AT_PART), row = get_u64(bytes + AT_ROW_BYTES);
    if (flags > ALL_FLAGS || outer > INT32_MAX || part > INT32_MAX || row > INT32_MAX) {
        return "its header makes no sense";
    }
    if (get_u32(bytes + AT_TRANSFORM) > VALUES) {
        return "its frames were transformed in a way that is not known; a newer version of the package may read it";
    }
    of->schema.layout = (ft_layout){
        .item = get_u32(bytes + AT_ITEM),
        .outer = (size_t)outer,
        .depth = get_u32(bytes + AT_DEPTH),
        .part = (size_t)part,
        .planes = get_u32(bytes + AT_PLANES),
        .row = (size_t)row,
        .can_turn = (flags & CAN_TURN) != 0,
        .interleave = (flags & INTERLEAVE) != 0,
    };
    of->schema.method = (ft_method){(flags & REFERENCES) != 0, (flags & PACKS) != 0, get_u32(bytes + AT_SHIFT)};
    of->schema.n_streams = get_u32(bytes + AT_STREAMS);
    of->schema.views = get_u32(bytes + AT_VIEWS);
    of->rows = get_u32(bytes + AT_ROWS);
    of->groups = get_u32(bytes + AT_GROUPS);
    of->exceptions = get_u32(bytes + AT_EXCEPTIONS);
    of->classes = get_u32(bytes + AT_CLASSES);
    of->transform = (int)get_u32(bytes + AT_TRANSFORM);
    of->tables = get_u32(bytes + AT_TABLES);
    of->data = get_u64(bytes + AT_DATA);
    of->first_row = get_u64(bytes + AT_FIRST_ROW);
    return NULL;
}

/* Whether the tables are those of the transform. */
static bool are_tables(const header *of) {
    const size_t item = of->schema.layout.item;
    return of->transform == VALUES ? of->tables >= item && of->tables <= FT_MOST_VALUES * item && of->tables % item == 0
                                   : of->tables == 0;
}

/* Whether the parts that the header lists are as long, together, as what is there. All amounts have 32 bits, but for the data. */
static bool adds_up(const ft_rows *rows, const header *of, size_t size) {
    const uint64_t around = HEADER_BYTES + FT_READ_AHEAD + FOOTER_BYTES, lanes = rows->n_streams;
    const uint64_t lane = LANE_BYTES + (uint64_t)blocks_of(of->rows) * FT_COUNT_BYTES;
    if (of->data > size || of->rows < 1 || of->rows > UINT16_MAX || lanes > size / lane) {
        return false;
    }
    const uint64_t index = lanes * lane + (uint64_t)of->groups * FT_GROUP_BYTES + (uint64_t)of->exceptions * FT_EXCEPTION_BYTES +
                           (uint64_t)of->classes * ft_count_class_bytes(rows) + of->tables;
    return around + of->data + index == size;
}

/* Set up where the rows of each stream are, and check that nothing leads outside. */
static bool read_lanes(ft_chunk *chunk, const header *of) {
    const ft_rows *rows = &chunk->rows;
    const size_t blocks = blocks_of(rows->rows);
    const uint8_t *lanes = rows->data + rows->data_bytes + FT_READ_AHEAD, *groups = lanes + rows->n_streams * LANE_BYTES;
    const uint8_t *exceptions = groups + of->groups * FT_GROUP_BYTES;
    const uint8_t *counts = exceptions + of->exceptions * FT_EXCEPTION_BYTES;
    size_t groups_left = of->groups, exceptions_left = of->exceptions;
    for (size_t i = 0; i < rows->n_streams; i++, lanes += LANE_BYTES) {
        ft_lane *lane = &chunk->lanes[i];
        *lane = (ft_lane){groups, exceptions, counts, NULL, get_u32(lanes), get_u32(lanes + 4), get_u32(lanes + 8), 0};
        if (lane->n_groups > groups_left || lane->n_exceptions > exceptions_left || lane->n_exceptions < 1 ||
            lane->frames > UINT16_MAX || lane->n_groups > lane->frames || (lane->frames > 0 && lane->n_groups == 0)) {
            return false;
        }
        for (size_t k = 0; k < lane->n_groups; k++) {
            const uint8_t *entry = groups + k * FT_GROUP_BYTES;
            const size_t offset = get_u32(entry), first = get_u16(entry + 4);
            const size_t before = k > 0 ? get_u16(entry - 2) : 0;
            if (offset > rows->data_bytes || rows->data_bytes - offset < RECORD_HEADER || first >= lane->frames ||
                (k > 0 ? first <= before : first != 0)) {
                return false;
            }
        }
        for (size_t k = 0, block = 0; k < lane->n_exceptions; k++) {
            const uint8_t *entry = exceptions + k * FT_EXCEPTION_BYTES;
            const size_t row = get_u16(entry);
            if (row >= rows->rows || (k > 0 ? row <= get_u16(entry - FT_EXCEPTION_BYTES) : row != 0) ||
                get_u16(entry + 2) > lane->frames || get_u32(entry + 4) >= rows->n_classes) {
                return false;
            }
            for (; block < blocks && block * FT_BLOCK_ROWS <= row; block++) {
                if (get_u16(counts + block * FT_COUNT_BYTES) != k) {
                    return false;
                }
            }
            for (; k + 1 == lane->n_exceptions && block < blocks; block++) {
                if (get_u16(counts + block * FT_COUNT_BYTES) != lane->n_exceptions) {
                    return false;
                }
            }
        }
        groups += lane->n_groups * FT_GROUP_BYTES;
        exceptions += lane->n_exceptions * FT_EXCEPTION_BYTES;
        counts += blocks * FT_COUNT_BYTES;
        groups_left -= lane->n_groups;
        exceptions_left -= lane->n_exceptions;
    }
    return groups_left == 0 && exceptions_left == 0;
}

/* Count what the frames were coded by. */
static void count_coded(ft_chunk *chunk) {
    const ft_rows *rows = &chunk->rows;
    for (size_t i = 0; i < rows->n_streams; i++) {
        const ft_lane *lane = &chunk->lanes[i];
        for (size_t k = 0; k < lane->n_groups; k++) {
            const uint8_t *entry = lane->groups + k * FT_GROUP_BYTES;
            const uint32_t stop = k + 1 < lane->n_groups ? get_u16(entry + FT_GROUP_BYTES + 4) : lane->frames;
            const int coder = rows->data[get_u32(entry) + RECORD_CODER];
            const bool is_patched = coder == KEYED || coder == PACKED || coder == OBJECTS || coder >= FT_MOST_CODERS;
            const uint32_t first = is_patched ? 0 : 1; /* frames that are no patch */
            chunk->coded[is_patched ? KEYED : coder] += first;
            chunk->coded[KEYED] += stop - get_u16(entry + 4) - first;
        }
    }
    for (size_t at = 0; at < rows->data_bytes && rows->data_bytes - at >= RECORD_HEADER;) { /* each begins a group, too */
        if (rows->data[at + RECORD_CODER] == KEY && chunk->coded[KEYED] > 0) {
            chunk->coded[KEY]++;
            chunk->coded[KEYED]--;
        }
        at += RECORD_HEADER + (size_t)get_u32(rows->data + at);
    }
}

/* Fill in a chunk from its bytes; returns what is wrong with them. Sums of data and index are for the caller to check. */
static const char *set_up(ft_chunk *chunk, const header *of, const ft_rows *rows, const uint8_t *bytes, size_t size) {
    *chunk = (ft_chunk){.rows = *rows, .bytes = bytes, .size = size, .first_row = of->first_row, .owners = 1};
    chunk->rows.rows = of->rows;
    chunk->rows.data = bytes + HEADER_BYTES;
    chunk->rows.data_bytes = (size_t)of->data;
    chunk->rows.arranged = of->data >= RECORD_HEADER && chunk->rows.data[RECORD_CODER] == CATALOGUE;
    chunk->rows.n_classes = of->classes;
    chunk->rows.n_values = of->tables / rows->given.item;
    chunk->rows.values = bytes + size - FOOTER_BYTES - of->tables;
    chunk->rows.classes = chunk->rows.values - of->classes * ft_count_class_bytes(rows);
    chunk->rows.lanes = chunk->lanes;
    chunk->rows.shelf = &chunk->shelf;
    const bool ends = memcmp(bytes + size - sizeof END, END, sizeof END) == 0 && get_u64(bytes + size - FOOTER_BYTES) == size;
    if (!ends || !read_lanes(chunk, of)) {
        return "its index makes no sense";
    }
    count_coded(chunk);
    return NULL;
}

/* Compare the sums of data and index with what is there. */
static const char *check_sums(const uint8_t *bytes, size_t size, const header *of) {
    const uint8_t *data = bytes + HEADER_BYTES, *index = data + of->data + FT_READ_AHEAD;
    if (get_u32(bytes + AT_DATA_SUM) != ft_compute_checksum(data, (size_t)of->data + FT_READ_AHEAD)) {
        return "its frames are damaged";
    }
    return get_u32(bytes + AT_INDEX_SUM) != ft_compute_checksum(index, (size_t)(bytes + size - index)) ? "its index is damaged" : NULL;
}

ft_chunk *ft_alloc_chunk(size_t n_streams) {
    const ft_chunk *chunk = NULL;
    return n_streams <= SIZE_MAX / 4 / sizeof *chunk->lanes ? ft_alloc(1, sizeof *chunk + n_streams * sizeof *chunk->lanes) : NULL;
}

int ft_chunk_open(const uint8_t *bytes, size_t size, void (*release)(void *, const uint8_t *, size_t), void *context,
                  ft_chunk **made, const char **what) {
    header of;
    ft_rows rows;
    *made = NULL;
    *what = read_header(bytes, size, &of);
    if (*what == NULL && (!ft_init_rows(&rows, &of.schema, of.transform) || !are_tables(&of) || !adds_up(&rows, &of, size))) {
        *what = "its header makes no sense";
    }
    if (*what == NULL) {
        *what = check_sums(bytes, size, &of);
    }
    if (*what != NULL) {
        return FT_DAMAGED;
    }
    ft_chunk *chunk = ft_alloc_chunk(rows.n_streams);
    if (chunk == NULL) {
        return FT_NO_MEMORY;
    }
    *what = set_up(chunk, &of, &rows, bytes, size);
    if (*what != NULL) {
        ft_free(chunk);
        return FT_DAMAGED;
    }
    chunk->release = release;
    chunk->context = context;
    *made = chunk;
    return FT_OK;
}

const char *ft_chunk_verify(const ft_chunk *chunk) {
    const ft_rows *rows = &chunk->rows;
    size_t at = 0, groups = 0;
    while (at < rows->data_bytes) {
        const uint8_t *record = rows->data + at;
        const size_t rest = rows->data_bytes - at;
        if (rest < RECORD_HEADER || get_u32(record) > rest - RECORD_HEADER) {
            return "it ends within a record";
        }
        if (!ft_knows_coder(record[RECORD_CODER])) {
            return "the coder of a record is not known; a newer version of the package may read it";
        }
        groups += record[RECORD_CODER + 1] > 0; /* others are only referred to */
        at += RECORD_HEADER + get_u32(record);
    }
    for (size_t i = 0; i < rows->n_streams; i++) {
        const ft_lane *lane = &rows->lanes[i];
        for (size_t k = 0; k < lane->n_groups; k++, groups--) {
            const uint8_t *entry = lane->groups + k * FT_GROUP_BYTES, *record = rows->data + get_u32(entry);
            const size_t stop = k + 1 < lane->n_groups ? get_u16(entry + FT_GROUP_BYTES + 4) : lane->frames;
            if (get_u16(record + 4) != (i & 0xFFFF) || record[RECORD_CODER + 1] != stop - get_u16(entry + 4)) {
                return "its index does not fit its records";
            }
        }
    }
    return groups == 0 ? NULL : "its index does not fit its records";
}

static void free_pages(void *context, const uint8_t *bytes, size_t size) {
    (void)context;
    ft_free_pages((void *)(uintptr_t)bytes, size);
}

void ft_set_up_chunk(ft_chunk *chunk, const uint8_t *pages, size_t size) {
    header of;
    ft_rows rows;
    read_header(pages, size, &of); /* these are our own, so nothing is wrong with them */
    ft_init_rows(&rows, &of.schema, of.transform);
    set_up(chunk, &of, &rows, pages, size);
    chunk->release = free_pages;
}

int ft_copy_chunk(const ft_rows *rows, uint64_t first_row, ft_chunk **made) {
    const size_t size = ft_measure_chunk(rows);
    ft_chunk *chunk = ft_alloc_chunk(rows->n_streams);
    uint8_t *pages = chunk != NULL ? ft_alloc_pages(size) : NULL;
    *made = NULL;
    if (pages == NULL) {
        ft_free(chunk);
        return FT_NO_MEMORY;
    }
    ft_write_chunk(rows, first_row, pages);
    ft_set_up_chunk(chunk, pages, size);
    *made = chunk;
    return FT_OK;
}

/* -- owners --------------------------------------------------------------------------------------------------------------- */

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
uint64_t ft_add_owners(uint64_t *owners, int64_t by) {
    return (uint64_t)_InterlockedExchangeAdd64((volatile long long *)owners, by) + (uint64_t)by;
}
#else
uint64_t ft_add_owners(uint64_t *owners, int64_t by) { return __atomic_add_fetch(owners, (uint64_t)by, __ATOMIC_ACQ_REL); }
#endif

void ft_chunk_keep(ft_chunk *chunk) { ft_add_owners(&chunk->owners, 1); }

void ft_chunk_drop(ft_chunk *chunk) {
    if (chunk != NULL && ft_add_owners(&chunk->owners, -1) == 0) {
        if (chunk->release != NULL) {
            chunk->release(chunk->context, chunk->bytes, chunk->size);
        }
        ft_clear_shelf(&chunk->shelf);
        ft_free(chunk);
    }
}

ft_chunk_info ft_chunk_get_info(const ft_chunk *chunk) {
    return (ft_chunk_info){chunk->bytes, chunk->size, chunk->rows.rows, chunk->first_row};
}

size_t ft_chunk_count_index_bytes(const ft_chunk *chunk) { return ft_chunk_count_held_bytes(chunk) - chunk->rows.data_bytes; }

size_t ft_chunk_count_held_bytes(const ft_chunk *chunk) {
    return chunk->size + sizeof *chunk + chunk->rows.n_streams * sizeof *chunk->lanes;
}
