/* The chunk that is open: its rows, each written whole or not at all. */
#include "builder.h"

#include <string.h>

enum {
    WRITTEN_AGAIN = 4,       /* observations that the last row may hold in vain */
    MOST_CLASSES = 1 << 12,  /* after which a chunk is full */
    MOST_FRAMES = 64,  /* as many bytes as so many frames have, likewise: by then, its key frames do not matter any more */
    LEAST_DATA = 1 << 19,    /* but no fewer bytes than this, */
    LEAST_ROWS = 64,         /* and no fewer rows: a chunk begins with a frame of each stream that the last one has, too; */
    MOST_DATA = 1 << 23,     /* but no more bytes than this */
    /* Frames of a stack are read five in a row, so one walk through a group is for all of them. Without a stack it is for two, and patches
     * of large frames, which have colours mostly, take longer to apply than the frame takes to copy: their groups are shorter. */
    LARGE_FRAME = 20000,
    LARGE_SHIFT = 2,
};

/* -- making one ----------------------------------------------------------------------------------------------------------- */
static size_t numbers_of(const ft_builder *builder) { return (2 + builder->rows.views) * builder->rows.layout.depth; }

/* Bytes from the record of one group to the next. Records have room for the largest group, and most groups are small: where each
 * begins on a page of its own, the system never has to find memory for the rest. */
static size_t measure_record_room(const ft_builder *builder) {
    const size_t bytes = builder->record_bytes;
    return bytes < FT_PAGE ? bytes : (bytes + FT_PAGE - 1) / FT_PAGE * FT_PAGE;
}

static bool make_streams(ft_builder *builder) {
    const ft_rows *rows = &builder->rows;
    const size_t n = rows->n_streams, depth = rows->layout.depth, blocks = (builder->most_rows + FT_BLOCK_ROWS - 1) / FT_BLOCK_ROWS;
    const size_t last = depth * rows->given_stride, record = measure_record_room(builder);
    const size_t given_tail = rows->transform == VALUES ? rows->given_stride : 0;
    const size_t each = 2 * record + rows->stride + given_tail + last;
    const size_t scratch = 2 * rows->given_stride + rows->stride + last + ft_pad_size(rows->layout.row) + rows->stride + FT_WRITE_AHEAD;
    if (each > SIZE_MAX / 4 / n) {
        return false;
    }
    builder->memory_bytes = n * each + scratch;
    builder->streams = ft_alloc(n, sizeof *builder->streams);
    builder->saved = ft_alloc(n, sizeof *builder->saved);
    builder->rooms = ft_alloc(n, sizeof *builder->rooms);
    builder->lanes = ft_alloc(n, sizeof *builder->lanes);
    builder->counts = ft_alloc(n * blocks, FT_COUNT_BYTES);
    builder->number_memory = ft_alloc(n * numbers_of(builder), sizeof(frame_number));
    builder->saved_numbers = ft_alloc(n * numbers_of(builder), sizeof(frame_number));
    builder->memory = ft_alloc_pages(builder->memory_bytes); /* goes back to the system as a whole, too */
    builder->hashes = ft_alloc(FT_FIRST_HASHES, sizeof *builder->hashes);
    builder->values = rows->transform == VALUES ? ft_alloc(1, sizeof *builder->values) : NULL;
    builder->n_hashes = FT_FIRST_HASHES;
    if (!builder->streams || !builder->saved || !builder->rooms || !builder->lanes || !builder->counts ||
        !builder->number_memory || !builder->saved_numbers || !builder->memory || !builder->hashes ||
        (rows->transform == VALUES && !builder->values)) {
        return false;
    }
    if (builder->values != NULL) {
        ft_init_values(builder->values, rows->given.item);
        builder->rows.values = builder->values->bytes;
    }
    uint8_t *tails = builder->memory + 2 * n * record, *given_tails = tails + n * rows->stride, *lasts = given_tails + n * given_tail;
    for (size_t i = 0; i < n; i++) { /* all records, then all tails, then all last observations */
        stream_memory *of = &builder->rooms[i];
        of->records[0] = builder->memory + 2 * i * record;
        of->records[1] = of->records[0] + record;
        of->tail = tails + i * rows->stride;
        of->given_tail = given_tails + i * given_tail;
        of->last = lasts + i * last;
        of->numbers = builder->number_memory + i * numbers_of(builder);
        of->before = of->numbers + depth;
        of->cell = of->before + depth;
        builder->lanes[i].counts = builder->counts + i * blocks * FT_COUNT_BYTES;
    }
    builder->spare = lasts + n * last;
    builder->frame = builder->spare + last;
    builder->pixels = builder->frame + rows->given_stride;
    builder->coded = builder->pixels + rows->given_stride;
    builder->zeros = builder->coded + rows->stride;
    builder->base = builder->zeros + ft_pad_size(rows->layout.row);
    return true;
}

int ft_builder_new(const ft_schema *schema, int transform, size_t most_rows, ft_builder **made) {
    ft_rows rows;
    *made = NULL;
    if (!ft_init_rows(&rows, schema, transform)) {
        return FT_INVALID;
    }
    ft_builder *builder = ft_alloc(1, sizeof *builder);
    if (builder == NULL) {
        return FT_NO_MEMORY;
    }
    builder->rows = rows;
    if (rows.layout.depth == 1 && rows.frame_bytes >= LARGE_FRAME && !rows.method.packs && rows.method.shift > LARGE_SHIFT) {
        builder->rows.method.shift = LARGE_SHIFT;
    }
    const size_t eighth = builder->rows.frame_bytes / 8;
    builder->patch_limit = eighth > 32 ? eighth : 32;
    builder->record_bytes = ft_measure_record(&builder->rows, builder->patch_limit);
    builder->most_rows = most_rows;
    if (!make_streams(builder)) {
        ft_builder_free(builder);
        return FT_NO_MEMORY;
    }
    builder->rows.lanes = builder->lanes;
    builder->rows.shelf = &builder->shelf;
    ft_builder_begin(builder);
    *made = builder;
    return FT_OK;
}

static void free_copy(ft_builder *builder) {
    ft_free(builder->copy.obs);
    ft_free(builder->copy.streams[0]);
    ft_free(builder->copy.scratch);
    builder->copy = (row_copy){NULL, {NULL, NULL}, NULL};
}

void ft_builder_free(ft_builder *builder) {
    if (builder == NULL) {
        return;
    }
    for (size_t i = 0; builder->rooms != NULL && i < builder->rows.n_streams; i++) {
        ft_free(builder->rooms[i].groups);
        ft_free(builder->rooms[i].exceptions);
    }
    void *parts[] = {builder->streams, builder->saved, builder->rooms, builder->lanes, builder->counts, builder->number_memory,
                     builder->saved_numbers, builder->hashes, builder->classes, builder->values, builder->catalogue.slots,
                     builder->places.slots, builder->compared};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        ft_free(parts[i]);
    }
    free_copy(builder);
    ft_free_pages(builder->memory, builder->memory_bytes);
    ft_free_pages(builder->block, builder->block_bytes);
    ft_free_pictures(builder->pictures);
    ft_clear_shelf(&builder->shelf);
    ft_free(builder);
}

void ft_builder_begin(ft_builder *builder) {
    ft_free_pages(builder->block, builder->block_bytes); /* there is none where a chunk has been made of it */
    builder->block = builder->data = NULL;
    builder->block_bytes = 0;
    builder->rows.data = NULL;
    builder->rows.rows = builder->rows.data_bytes = builder->rows.n_classes = builder->rows.n_values = 0;
    builder->data_bytes = builder->n_classes = 0;
    builder->newest_key = -1;
    builder->is_changing = false;
    ft_begin_pictures(builder->pictures);
    ft_clear_shelf(&builder->shelf);
    if (builder->values != NULL) {
        ft_cut_values(builder->values, 0); /* those of the last chunk need not be those of the next */
    }
    memset(builder->hashes, 0, builder->n_hashes * sizeof *builder->hashes);
    ft_clear_catalogue(&builder->catalogue);
    ft_clear_places(&builder->places);
    for (size_t i = 0; i < builder->rows.n_streams; i++) {
        stream *of = &builder->streams[i];
        *of = (stream){.key = -1, .base = -1, .short_groups = of->short_groups, .row_above = of->row_above, .vain = of->vain,
                       .picture = of->picture};
        ft_lane *lane = &builder->lanes[i];
        lane->n_groups = lane->n_exceptions = lane->frames = lane->open_bytes = 0;
        lane->open = NULL;
    }
}

const ft_rows *ft_builder_get_rows(const ft_builder *builder) { return &builder->rows; }

bool ft_builder_is_full(const ft_builder *builder) {
    const size_t frames = MOST_FRAMES * builder->rows.frame_bytes, enough = frames > LEAST_DATA ? frames : LEAST_DATA;
    const bool is_large = builder->data_bytes >= MOST_DATA || (builder->data_bytes >= enough && builder->rows.rows >= LEAST_ROWS);
    bool full = builder->rows.rows >= builder->most_rows || is_large || builder->n_classes >= MOST_CLASSES;
    for (size_t i = 0; i < builder->rows.n_streams && !full; i++) {
        full = builder->streams[i].frames >= FT_MOST_FRAMES;
    }
    return full;
}

bool ft_builder_has_much_in_vain(const ft_builder *builder) {
    const size_t most = WRITTEN_AGAIN * builder->rows.views * builder->rows.layout.depth;
    for (size_t i = 0; i < builder->rows.n_streams; i++) {
        if (builder->streams[i].frames - builder->streams[i].frames_before > most) {
            return true;
        }
    }
    return false;
}

bool ft_builder_doubts_layout(const ft_builder *builder, uint64_t patience) {
    const ft_rows *rows = &builder->rows;
    /* Giving a layout up means that the chunk ends or is coded again, so that is done once strays have cost as much. All streams may
     * begin an episode at the same time. */
    const uint64_t held = (uint64_t)rows->rows * rows->n_streams * rows->views, strays = builder->doubt.strays;
    return rows->layout.depth > 1 && strays > patience && strays - patience > 2 * rows->n_streams + held / rows->layout.depth;
}

bool ft_builder_get_last(const ft_builder *builder, size_t i, uint8_t *out) {
    const ft_rows *rows = &builder->rows;
    if (!builder->streams[i].known) {
        return false;
    }
    if (builder->turned) {
        ft_turn_observation(&rows->given, builder->rooms[i].last, true, out);
    } else {
        ft_copy_last(builder, i, out);
    }
    return true;
}

/* -- rows ----------------------------------------------------------------------------------------------------------------- */

/* Begin a row of a stream in which nothing is written yet. */
static void begin_cell(ft_builder *builder, size_t i, size_t row) {
    stream *of = &builder->streams[i];
    stream_memory *at = &builder->rooms[i];
    const size_t depth = builder->rows.layout.depth, views = builder->rows.views;
    of->follows = of->written >> (views - 1) & 1;
    memcpy(at->before, at->cell + (views - 1) * depth, depth * sizeof *at->before);
    for (size_t k = 0; k < views * depth; k++) {
        at->cell[k] = FT_UNWRITTEN;
    }
    of->written = 0;
    of->frames_before = of->frames;
    if (row % FT_BLOCK_ROWS == 0) {
        put_u16((uint8_t *)builder->lanes[i].counts + row / FT_BLOCK_ROWS * FT_COUNT_BYTES, of->n_exceptions);
    }
}

/* Keep the state of all streams, to be put back unless what follows is committed. Must come before the first call of a codec. */
static void save_state(ft_builder *builder) {
    const size_t n = builder->rows.n_streams;
    memcpy(builder->saved, builder->streams, n * sizeof *builder->saved);
    for (size_t i = 0; i < n; i++) {
        if (builder->saved[i].n_exceptions > 0) {
            memcpy(builder->saved[i].exception, last_exception(builder, i), FT_EXCEPTION_BYTES);
        }
    }
    memcpy(builder->saved_numbers, builder->number_memory, n * numbers_of(builder) * sizeof(frame_number));
    builder->saved_data_bytes = builder->data_bytes;
    builder->saved_newest_key = builder->newest_key;
    ft_save_pictures(builder->pictures);
    builder->saved_doubt = builder->doubt;
    builder->saved_values = builder->values != NULL ? builder->values->count : 0;
    builder->is_changing = true;
}

void ft_builder_abort(ft_builder *builder) {
    const size_t n = builder->rows.n_streams;
    free_copy(builder);
    if (!builder->is_changing) {
        return;
    }
    builder->is_changing = false;
    for (size_t i = 0; i < n; i++) {
        const bool tail_holds = builder->saved[i].tail_holds && builder->streams[i].frames == builder->saved[i].frames;
        builder->streams[i] = builder->saved[i];
        builder->streams[i].tail_holds = tail_holds;
        builder->streams[i].known = false; /* the last observation may have been written over */
        if (builder->saved[i].n_exceptions > 0) {
            memcpy(last_exception(builder, i), builder->saved[i].exception, FT_EXCEPTION_BYTES);
        }
    }
    memcpy(builder->number_memory, builder->saved_numbers, n * numbers_of(builder) * sizeof(frame_number));
    builder->data_bytes = builder->saved_data_bytes;
    builder->newest_key = builder->saved_newest_key;
    ft_restore_pictures(builder->pictures);
    builder->doubt = builder->saved_doubt;
    if (builder->values != NULL) {
        ft_cut_values(builder->values, builder->saved_values);
    }
}

/* Let readers see what has been written. */
static void publish(ft_builder *builder, size_t rows) {
    for (size_t i = 0; i < builder->rows.n_streams; i++) {
        ft_describe_lane(builder, i, &builder->lanes[i]);
    }
    builder->rows.data_bytes = builder->data_bytes;
    builder->rows.n_classes = builder->n_classes;
    builder->rows.n_values = builder->values != NULL ? builder->values->count : 0;
    builder->rows.rows = rows;
    builder->is_changing = false;
}

void ft_builder_commit(ft_builder *builder) { publish(builder, builder->staged_row + 1); }

int ft_builder_pack_staged(ft_builder *builder, const ft_codecs *codecs) {
    int result = FT_OK;
    for (size_t i = 0; builder->rows.method.references && i < builder->rows.n_streams && result == FT_OK; i++) {
        result = ft_close_group(builder, i, codecs);
    }
    if (result != FT_OK) {
        ft_builder_abort(builder);
    }
    return result;
}

int ft_builder_pack(ft_builder *builder, const ft_codecs *codecs) {
    save_state(builder);
    const int result = ft_builder_pack_staged(builder, codecs);
    if (result == FT_OK) {
        publish(builder, builder->rows.rows);
    }
    return result;
}

int ft_builder_seal(ft_builder *builder, uint64_t first_row, ft_chunk **made) {
    ft_chunk *chunk = ft_alloc_chunk(builder->rows.n_streams);
    *made = NULL;
    if (chunk == NULL || !ft_resize_block(builder, ft_measure_chunk(&builder->rows))) {
        ft_free(chunk);
        return FT_NO_MEMORY;
    }
    ft_write_chunk(&builder->rows, first_row, builder->block);
    ft_set_up_chunk(chunk, builder->block, builder->block_bytes);
    builder->block = NULL; /* it is the chunk's now, and so are tables */
    chunk->shelf = builder->shelf;
    builder->shelf.first = NULL;
    ft_shelve_books(builder->pictures, &chunk->shelf, chunk->rows.frame_bytes);
    ft_builder_begin(builder);
    *made = chunk;
    return FT_OK;
}

static int write_parts(ft_builder *builder, const ft_part *parts, size_t n_parts, const ft_codecs *codecs) {
    const size_t depth = builder->rows.layout.depth, views = builder->rows.views;
    /* Both observations of a stream, then those of the next: what the second is compared with is still in a cache. */
    const bool alike = n_parts == 2 && parts[0].turned == parts[1].turned && parts[0].streams == parts[1].streams &&
                       parts[0].count == parts[1].count;
    const size_t together = alike ? 2 : 1;
    for (size_t done = 0; done < n_parts; done += together) {
        ft_set_order(builder, parts[done].turned);
        for (size_t k = 0; k < parts[done].count * together; k++) {
            const ft_part *part = &parts[done + k % together];
            const size_t i = part->streams ? part->streams[k / together] : k / together;
            const uint8_t *obs = part->obs + k / together * builder->rows.obs_bytes;
            builder->doubt.observations++;
            const int result = ft_write_observation(builder, i, obs, part->view + 1 == views, codecs);
            if (result != FT_OK) {
                return result;
            }
            memcpy(builder->rooms[i].cell + part->view * depth, builder->rooms[i].numbers, depth * sizeof(frame_number));
            builder->streams[i].written |= 1u << part->view;
        }
    }
    return FT_OK;
}

int ft_builder_stage(ft_builder *builder, size_t row, const ft_part *parts, size_t n_parts, const ft_codecs *codecs) {
    save_state(builder);
    for (size_t i = 0; row == builder->rows.rows && i < builder->rows.n_streams; i++) {
        begin_cell(builder, i, row);
    }
    builder->staged_row = row;
    int result = write_parts(builder, parts, n_parts, codecs);
    if (result == FT_OK) {
        result = ft_note_exceptions(builder, row);
    }
    if (result != FT_OK) {
        ft_builder_abort(builder);
    }
    return result;
}

int ft_builder_check_parts(const ft_builder *builder, const ft_part *parts, size_t n_parts, size_t *cells) {
    const ft_rows *rows = &builder->rows;
    *cells = 0;
    for (size_t part = 0; part < n_parts; part++) {
        if (parts[part].view >= rows->views || (parts[part].turned && !rows->layout.can_turn) || parts[part].count > rows->n_streams ||
            (part > 0 && parts[part].view == parts[0].view)) {
            return FT_INVALID;
        }
        for (size_t k = 0; parts[part].streams != NULL && k < parts[part].count; k++) {
            if (parts[part].streams[k] >= rows->n_streams) {
                return FT_OUTSIDE;
            }
        }
        *cells += parts[part].count;
    }
    return n_parts <= rows->views ? FT_OK : FT_INVALID;
}

/* -- rows that are copied ------------------------------------------------------------------------------------------------- */

static bool make_copy(ft_builder *builder, const ft_rows *from) {
    row_copy *copy = &builder->copy;
    copy->obs = ft_alloc(from->views * from->n_streams, from->obs_bytes);
    copy->streams[0] = ft_alloc(FT_MAX_VIEWS * from->n_streams, sizeof(size_t));
    copy->scratch = ft_alloc(1, ft_measure_scratch(from));
    copy->streams[1] = copy->streams[0] != NULL ? copy->streams[0] + from->n_streams : NULL;
    return copy->obs && copy->streams[0] && copy->scratch;
}

/* Decode the cells of a row that are written, but not those that a row here has already. Each view makes a part, which may be empty. */
static int decode_row(ft_builder *builder, size_t row, const ft_rows *from, size_t from_row, ft_part parts[FT_MAX_VIEWS],
                      const ft_codecs *codecs) {
    row_copy *copy = &builder->copy;
    for (size_t view = 0; view < FT_MAX_VIEWS; view++) {
        parts[view] = (ft_part){view, copy->obs + view * from->n_streams * from->obs_bytes, false, copy->streams[view], 0};
    }
    for (size_t i = 0; i < from->n_streams; i++) {
        const unsigned known = row < builder->rows.rows ? ft_find_written_views(&builder->rows, row, i) : 0;
        const unsigned wanted = ft_find_written_views(from, from_row, i) & ~known;
        uint8_t *outputs[FT_MAX_VIEWS] = {NULL, NULL};
        const size_t room[FT_MAX_VIEWS] = {0, 0};
        for (size_t view = 0; view < FT_MAX_VIEWS; view++) {
            if (wanted >> view & 1) {
                outputs[view] = copy->obs + (view * from->n_streams + parts[view].count) * from->obs_bytes;
                copy->streams[view][parts[view].count++] = i;
            }
        }
        const int result = wanted != 0 ? ft_decode_cell(from, from_row, i, outputs, room, copy->scratch, codecs) : FT_OK;
        if (result != FT_OK) {
            return result;
        }
    }
    return FT_OK;
}

int ft_builder_copy_rows(ft_builder *builder, size_t row, const ft_rows *from, size_t first, size_t count, const ft_codecs *codecs) {
    const ft_doubt doubt = builder->doubt;
    const bool completes = row < builder->rows.rows;
    int result = make_copy(builder, from) ? FT_OK : FT_NO_MEMORY;
    for (size_t k = 0; k < count && result == FT_OK; k++) {
        ft_part parts[FT_MAX_VIEWS];
        result = decode_row(builder, row + k, from, first + k, parts, codecs);
        if (result == FT_OK) {
            result = ft_builder_stage(builder, row + k, parts, from->views, codecs);
        }
        if (result == FT_OK) {
            ft_builder_commit(builder);
        }
        for (size_t i = 0; completes && result == FT_OK && i < parts[0].count + parts[1].count; i++) {
            const bool is_first = i < parts[0].count;
            builder->streams[parts[!is_first].streams[is_first ? i : i - parts[0].count]].known = false; /* nothing follows from it */
        }
    }
    free_copy(builder);
    builder->doubt = doubt; /* what was seen already says nothing new */
    return result;
}

int ft_builder_skip_rows(ft_builder *builder, size_t count, const ft_codecs *codecs) {
    int result = FT_OK;
    for (size_t k = 0; k < count && result == FT_OK; k++) {
        result = ft_builder_stage(builder, builder->rows.rows, NULL, 0, codecs);
        if (result == FT_OK) {
            ft_builder_commit(builder);
        }
    }
    return result;
}

/* -- what it takes -------------------------------------------------------------------------------------------------------- */

ft_doubt *ft_builder_get_doubt(ft_builder *builder) { return &builder->doubt; }

bool ft_builder_needs_codecs(const ft_builder *builder) {
    const bool takes_pictures = ft_takes_pictures(&builder->rows);
    size_t coded = 0;
    for (size_t i = 0; i < builder->rows.n_streams; i++) {
        const stream *of = &builder->streams[i];
        coded += !references_pay(of) && (!takes_pictures || of->picture.mode == CODED);
    }
    return builder->rows.method.packs || !builder->rows.method.references || 2 * coded > builder->rows.n_streams;
}

void ft_builder_count_coded(const ft_builder *builder, uint64_t coded[FT_MOST_CODERS]) {
    for (size_t i = 0; i < builder->rows.n_streams; i++) {
        for (size_t k = 0; k < FT_MOST_CODERS; k++) {
            coded[k] += builder->streams[i].coded[k];
        }
    }
}

size_t ft_builder_count_index_bytes(const ft_builder *builder) {
    const ft_rows *rows = &builder->rows;
    size_t bytes = rows->n_classes * ft_count_class_bytes(rows) + rows->n_values * rows->given.item;
    for (size_t i = 0; i < rows->n_streams; i++) {
        bytes += builder->lanes[i].n_groups * FT_GROUP_BYTES + builder->lanes[i].n_exceptions * FT_EXCEPTION_BYTES;
    }
    return bytes + rows->n_streams * ((rows->rows + FT_BLOCK_ROWS - 1) / FT_BLOCK_ROWS) * FT_COUNT_BYTES;
}

size_t ft_builder_count_held_bytes(const ft_builder *builder) {
    size_t bytes = builder->block_bytes + builder->classes_room + builder->catalogue.n_slots * sizeof *builder->catalogue.slots +
                   builder->places.n_slots * sizeof *builder->places.slots;
    for (size_t i = 0; i < builder->rows.n_streams; i++) {
        bytes += builder->rooms[i].groups_room + builder->rooms[i].exceptions_room;
    }
    return bytes;
}
