/* Columns beside plain arrays of what they have to hold. */
#include "test_core.h"

pair *pair_new(const ft_schema *schema, size_t rows, size_t chunk_rows, uint64_t seed) {
    pair *both = grab(sizeof *both);
    both->schema = *schema;
    both->rows = rows;
    both->obs_bytes = obs_bytes_of(&schema->layout);
    both->chance = (chance){seed};
    both->play = play;
    both->codecs = codecs_of(&both->codec);
    CHECK(ft_column_new(schema, rows, chunk_rows, &both->column) == FT_OK);
    for (size_t view = 0; view < schema->views; view++) {
        both->plain[view] = grab(rows * schema->n_streams * both->obs_bytes);
        both->written[view] = grab(rows * schema->n_streams);
    }
    both->now = grab(schema->n_streams * both->obs_bytes);
    both->next = grab(schema->n_streams * both->obs_bytes);
    both->lying = grab(FT_MAX_VIEWS * schema->n_streams * both->obs_bytes);
    return both;
}

void pair_free(pair *both) {
    ft_column_free(both->column);
    free(both->plain[0]);
    free(both->plain[1]);
    free(both->written[0]);
    free(both->written[1]);
    free(both->now);
    free(both->next);
    free(both->lying);
    free(both->codec.blob);
    free(both);
}

ft_part lay(pair *both, size_t view, const uint8_t *obs, size_t count) {
    uint8_t *lying = both->lying + view * both->schema.n_streams * both->obs_bytes;
    const bool turned = both->schema.layout.can_turn && one_in(&both->chance, 3);
    for (size_t i = 0; i < count; i++) {
        if (turned) {
            turn_plainly(&both->schema.layout, obs + i * both->obs_bytes, lying + i * both->obs_bytes);
        } else {
            memcpy(lying + i * both->obs_bytes, obs + i * both->obs_bytes, both->obs_bytes);
        }
    }
    return (ft_part){view, lying, turned, NULL, count};
}

void play_on(pair *both, uint8_t *obs) {
    both->play(&both->chance, &both->schema.layout, obs);
    limit_values(&both->schema.layout, both->values, obs);
}

int write_row(pair *both, size_t row, bool hesitates) {
    const size_t n = both->schema.n_streams, bytes = n * both->obs_bytes, views = both->schema.views;
    memcpy(both->next, both->now, bytes);
    for (size_t i = 0; i < n; i++) {
        play_on(both, both->next + i * both->obs_bytes);
    }
    ft_part parts[FT_MAX_VIEWS];
    parts[0] = lay(both, 0, views == 2 ? both->now : both->next, n);
    if (views == 2) {
        parts[1] = lay(both, 1, both->next, n);
    }
    for (;;) {
        const int result = ft_column_stage(both->column, row, parts, views, &both->codecs);
        if (result != FT_OK) {
            return result;
        }
        if (!hesitates || one_in(&both->chance, 2)) {
            break;
        }
        ft_column_abort(both->column);
    }
    ft_column_commit(both->column);
    memcpy(both->plain[0] + row * bytes, views == 2 ? both->now : both->next, bytes);
    memset(both->written[0] + row * n, 1, n);
    if (views == 2) {
        memcpy(both->plain[1] + row * bytes, both->next, bytes);
        memset(both->written[1] + row * n, 1, n);
    }
    memcpy(both->now, both->next, bytes);
    both->next_row = (row + 1) % both->rows;
    return FT_OK;
}

int write_view(pair *both, size_t row, size_t view) {
    const size_t n = both->schema.n_streams, bytes = n * both->obs_bytes;
    memcpy(both->next, both->now, bytes);
    for (size_t i = 0; i < n && view + 1 == both->schema.views; i++) {
        play_on(both, both->next + i * both->obs_bytes);
    }
    const ft_part part = lay(both, view, both->next, n);
    const int result = ft_column_stage(both->column, row, &part, 1, &both->codecs);
    if (result == FT_OK) {
        ft_column_commit(both->column);
        memcpy(both->plain[view] + row * bytes, both->next, bytes);
        memset(both->written[view] + row * n, 1, n);
        memcpy(both->now, both->next, bytes);
        both->next_row = (row + 1) % both->rows;
    }
    return result;
}

int write_cell(pair *both, size_t row, size_t stream, size_t view) {
    uint8_t *obs = both->now + stream * both->obs_bytes;
    memcpy(both->next, obs, both->obs_bytes);
    play_on(both, both->next);
    ft_part part = lay(both, view, both->next, 1);
    part.streams = &stream;
    const int result = ft_column_stage(both->column, row, &part, 1, &both->codecs);
    if (result == FT_OK) {
        ft_column_commit(both->column);
        memcpy(both->plain[view] + (row * both->schema.n_streams + stream) * both->obs_bytes, both->next, both->obs_bytes);
        memcpy(obs, both->next, both->obs_bytes);
        both->written[view][row * both->schema.n_streams + stream] = 1;
    }
    return result;
}

void check_cells(pair *both, const ft_column *column, const int64_t *rows, const int64_t *streams, size_t count) {
    const size_t n = both->schema.n_streams;
    uint8_t *outs[FT_MAX_VIEWS] = {grab(count * both->obs_bytes), NULL};
    if (both->schema.views == 2) {
        outs[1] = grab(count * both->obs_bytes);
    }
    ft_read *read;
    CHECK(ft_read_begin(column, rows, streams, count, outs, &both->codecs, &read) == FT_OK);
    CHECK(ft_read_run(read, 2, &both->codecs) == FT_OK);
    ft_read_end(read);
    for (size_t k = 0; k < count; k++) {
        const size_t cell = (size_t)rows[k] * n + (size_t)streams[k];
        for (size_t view = 0; view < both->schema.views; view++) {
            CHECK(memcmp(outs[view] + k * both->obs_bytes, both->plain[view] + cell * both->obs_bytes, both->obs_bytes) == 0);
        }
    }
    free(outs[0]);
    free(outs[1]);
}

void check_all(pair *both, const ft_column *column) {
    const size_t n = both->schema.n_streams, count = both->rows * n;
    uint64_t written = 0;
    for (size_t k = 0; k < both->schema.views * count; k++) {
        written += both->written[k / count][k % count];
    }
    CHECK(ft_column_get_usage(column).cells == written);
    int64_t *rows = grab(count * sizeof *rows), *streams = grab(count * sizeof *streams);
    for (size_t k = 0; k < count; k++) { /* in some order */
        rows[k] = (int64_t)(k * 7919 % count / n);
        streams[k] = (int64_t)(k * 7919 % count % n);
    }
    check_cells(both, column, rows, streams, count);
    for (size_t k = 0; k < count; k++) {
        rows[k] = (int64_t)(k / n);
        streams[k] = (int64_t)(k % n);
    }
    check_cells(both, column, rows, streams, count);
    free(rows);
    free(streams);
}

void keep_bytes(void *context, const uint8_t *bytes, size_t size) {
    (void)context;
    (void)bytes;
    (void)size;
}

static void drop_bytes(void *context, const uint8_t *bytes, size_t size) {
    (void)size;
    ++*(size_t *)context;
    free((void *)(uintptr_t)bytes);
}

/* A chunk as it comes out of a file. */
static ft_chunk *copy_of(const ft_chunk *chunk, size_t *dropped) {
    const ft_chunk_info of = ft_chunk_get_info(chunk);
    uint8_t *copy = grab(of.size);
    memcpy(copy, of.bytes, of.size);
    const char *what;
    ft_chunk *other;
    CHECK(ft_chunk_open(copy, of.size, drop_bytes, dropped, &other, &what) == FT_OK);
    CHECK(what == NULL && ft_chunk_verify(other) == NULL);
    return other;
}

ft_column *load_column(pair *both, size_t chunk_rows, size_t *sent, size_t *dropped) {
    size_t count;
    const ft_span *spans = ft_column_get_spans(both->column, &count);
    ft_column *other;
    ft_chunk *open, *last = NULL;
    CHECK(ft_column_new(&both->schema, both->rows, chunk_rows, &other) == FT_OK);
    for (size_t k = 0; k < count; k++) {
        CHECK(k == 0 || spans[k].first_row >= spans[k - 1].first_row + spans[k - 1].rows);
        ft_chunk *copy = copy_of(spans[k].chunk, dropped);
        ++*sent;
        CHECK(ft_column_adopt(other, copy, spans[k].chunk_row, spans[k].first_row, spans[k].rows) == FT_OK);
        ft_chunk_drop(copy);
    }
    CHECK(ft_column_snapshot(both->column, &open) == FT_OK);
    if (open != NULL) {
        last = copy_of(open, dropped);
        const ft_chunk_info of = ft_chunk_get_info(last);
        const bool lacks = chunk_at(both->column, of.first_row + of.rows - 1) != NULL; /* cells of its last row */
        ++*sent;
        CHECK(of.rows == lacks || ft_column_adopt(other, last, 0, of.first_row, of.rows - lacks) == FT_OK);
        CHECK(!lacks || ft_column_adopt_row(other, last, of.rows - 1, of.first_row + of.rows - 1, &both->codecs) == FT_OK);
        ft_chunk_drop(last);
    }
    ft_chunk_drop(open);
    return other;
}

void send_chunks(pair *both) {
    size_t sent = 0, dropped = 0;
    ft_column *other = load_column(both, 48, &sent, &dropped);
    check_all(both, other);
    ft_column_free(other);
    CHECK(dropped == sent);
}
