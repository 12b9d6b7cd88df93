/* Frames that no patch helps: which coder they get, and the codebooks that it takes. */
#include "builder.h"
#include "study.h"

#include <string.h>

enum {
    LEAST_BYTES = 2048, /* of a frame that is worth a codebook, which has about as many itself */
    STUDY_EVERY = 8,    /* pictures of which one is counted, */
    STUDY_RARELY = 16,  /* and of which one is, once there have been many */
    GROWING = 64,       /* pictures after which older ones count less */
    SCENE = 32,         /* pictures before a change of scene is worth another codebook, */
    LOST = 8,           /* and before it is if pictures cannot be coded any more */
    REVIEW_EVERY = 256, /* pictures after which another codebook is tried; before that at powers of two */
    SAMPLES = 4,        /* frames that a codebook is judged by, and the codes of P are made from */
    GAIN = 40,          /* a codebook is worth it if pictures get smaller by this part, */
    USES = 32,          /* and if it has paid for itself after so many pictures */
    TRY_OTHERS = 32,    /* pictures after which another coder is tried */
    TRY_CODEC = 256,    /* the same for the codec */
    REST = 16,
    CALM = 4,           /* groups after which patches are trusted again */
    SAMPLE = 64,        /* bytes that are compared with those of the last frame, */
    SAMPLE_EVERY = 8,   /* once in so many times as many */
    BEFORE = 2 * RECORD_NUMBER, /* what a record has before a picture */
};

#define UNKNOWN FT_NO_PICTURE /* no size is expected */

/* One of the two coders, and its latest codebook. */
typedef struct craft {
    int kind;
    void *codes, *trial;    /* of the codebook, and of one that may take its place */
    uint8_t book[FT_MOST_BOOK];
    size_t book_bytes;      /* 0 while there is none */
    ft_tables *tables;      /* of it, or of an older one, or NULL */
    uint32_t tabled;        /* which version they are of */
    int64_t at, saved_at;   /* where it is in the data, -1 where it is not */
    uint32_t version, saved_version;
    uint32_t reviewed, next; /* pictures so far when a codebook was last made, and when one is going to be */
    uint32_t counts[FT_PAIRS]; /* symbols of P in pictures that were counted; older ones count less */
    uint8_t *out;           /* what it has made of a picture */
} craft;

struct ft_pictures {
    ft_shape shape;
    ft_study *study;
    craft crafts[2];
    ft_desk desk;
    uint8_t *memory;
    uint32_t seen;               /* pictures so far, whoever has coded them */
    uint32_t books, saved_books; /* in the chunk */
};

/* -- what they look like -------------------------------------------------------------------------------------------------- */

static bool find_shape(const ft_rows *rows, ft_shape *shape) {
    const ft_layout *layout = &rows->layout;
    const size_t pixel = layout->interleave ? layout->planes : layout->pixel > 0 ? layout->pixel : 1;
    const size_t row = layout->row / (layout->interleave ? 1 : pixel); /* of planes, each has rows of its own */
    if (layout->item != 1 || pixel > FT_MOST_PIXEL || row < 4 || rows->frame_bytes < LEAST_BYTES ||
        rows->frame_bytes % (row * pixel) != 0 || (!layout->interleave && layout->row % pixel != 0)) {
        return false;
    }
    *shape = (ft_shape){row, rows->frame_bytes / (row * pixel), pixel, layout->interleave};
    return shape->height >= FT_LEAST_HEIGHT;
}

bool ft_takes_pictures(const ft_rows *rows) {
    ft_shape shape;
    return find_shape(rows, &shape);
}

/* -- making and freeing --------------------------------------------------------------------------------------------------- */

void ft_free_pictures(ft_pictures *pictures) {
    if (pictures == NULL) {
        return;
    }
    for (int k = 0; k < 2; k++) {
        ft_free(pictures->crafts[k].codes);
        ft_free(pictures->crafts[k].trial);
        ft_drop_tables(pictures->crafts[k].tables);
    }
    ft_study_free(pictures->study);
    ft_free(pictures->memory);
    ft_free(pictures);
}

static ft_pictures *make_pictures(const ft_rows *rows) {
    ft_pictures *pictures = ft_alloc(1, sizeof *pictures);
    if (pictures == NULL) {
        return NULL;
    }
    ft_shape *shape = &pictures->shape;
    find_shape(rows, shape);
    const size_t frame = ft_pad_size(rows->frame_bytes), desk_rows = FT_DESK_ROWS(shape->width);
    const size_t each = (shape->height + FT_STREAMS - 1) / FT_STREAMS * (shape->width * 3 / 2 + 8) + 64;
    pictures->study = ft_study_new(shape);
    pictures->memory = ft_alloc(1, desk_rows + FT_STREAMS * each + 3 * frame);
    if (pictures->memory == NULL) {
        ft_free_pictures(pictures);
        return NULL;
    }
    uint8_t *at = pictures->memory + desk_rows;
    pictures->desk.rows = pictures->memory;
    for (int s = 0; s < FT_STREAMS; s++, at += each) {
        pictures->desk.streams[s] = at;
    }
    pictures->desk.escapes = at;
    pictures->desk.escape_room = frame;
    for (int k = 0; k < 2; k++) {
        craft *of = &pictures->crafts[k];
        const size_t size = k == 0 ? sizeof(ft_palette_codes) : sizeof(ft_joint_codes);
        *of = (craft){.kind = k == 0 ? PALETTE : JOINT, .at = -1, .saved_at = -1, .next = 1};
        of->out = at += frame;
        of->codes = ft_alloc(1, size);
        of->trial = ft_alloc(1, size);
        if (of->codes == NULL || of->trial == NULL || pictures->study == NULL) {
            ft_free_pictures(pictures);
            return NULL;
        }
    }
    return pictures;
}

void ft_begin_pictures(ft_pictures *pictures) {
    if (pictures != NULL) {
        pictures->books = 0;
        pictures->crafts[0].at = pictures->crafts[1].at = -1;
    }
}

void ft_save_pictures(ft_pictures *pictures) {
    if (pictures != NULL) {
        pictures->saved_books = pictures->books;
        for (int k = 0; k < 2; k++) {
            pictures->crafts[k].saved_at = pictures->crafts[k].at;
            pictures->crafts[k].saved_version = pictures->crafts[k].version;
        }
    }
}

/* What was counted stays counted: it does no harm, as whatever is coded says by which codebook. */
void ft_restore_pictures(ft_pictures *pictures) {
    if (pictures != NULL) {
        pictures->books = pictures->saved_books;
        for (int k = 0; k < 2; k++) {
            craft *of = &pictures->crafts[k];
            of->at = of->version == of->saved_version ? of->saved_at : -1;
        }
    }
}

/* -- codebooks ------------------------------------------------------------------------------------------------------------ */

static size_t encode(const ft_pictures *pictures, const craft *with, const void *codes, const uint8_t *frame, size_t limit,
                     uint32_t *counts) {
    return with->kind == PALETTE ? ft_active->encode_palette(codes, frame, &pictures->desk, with->out, limit, counts)
                                 : ft_active->encode_joint(codes, frame, &pictures->desk, with->out, limit);
}

/* Some frames to judge codebooks by: this one, and the last ones of all streams, since they share them. */
typedef struct samples {
    const uint8_t *frames[SAMPLES];
    size_t count;
} samples;

static samples take_samples(const ft_builder *builder, const uint8_t *frame) {
    samples some = {{frame}, 1};
    for (size_t k = 0; k < builder->rows.n_streams && some.count < SAMPLES; k++) {
        if (builder->streams[k].tail_holds) {
            some.frames[some.count++] = builder->rooms[k].tail;
        }
    }
    return some;
}

/* Bytes that samples take, each of them no more than a frame; `counts` are those of symbols of P. */
static size_t measure(const ft_builder *builder, const craft *of, const void *codes, const samples *some, uint32_t *counts) {
    const size_t most = builder->rows.frame_bytes;
    size_t sum = 0;
    for (size_t k = 0; k < some->count; k++) {
        const size_t size = encode(builder->pictures, of, codes, some->frames[k], most, counts);
        sum += size < most ? size : most;
    }
    return sum;
}

/* Make a codebook of what was counted, and take it if it is better. Returns the bytes of the picture. */
static size_t review(ft_builder *builder, craft *of, const uint8_t *frame, size_t limit) {
    ft_pictures *pictures = builder->pictures;
    const samples some = take_samples(builder, frame);
    ft_book book;
    if (pictures->seen > GROWING) {
        ft_study_forget(pictures->study, of->kind);
        ft_study_frame(pictures->study, of->kind, frame);
    }
    ft_study_make_book(pictures->study, of->kind, &book);
    if (of->kind == PALETTE) {
        for (size_t k = 0; k < FT_PAIRS; k++) {
            of->counts[k] /= 2;
        }
        ft_make_palette_codes(&book, of->trial);
        measure(builder, of, of->trial, &some, of->counts);
        ft_find_lengths(of->counts, FT_PAIRS, FT_PAIR_BITS, book.lengths);
        ft_make_palette_codes(&book, of->trial);
    } else {
        ft_make_joint_codes(&book, of->trial);
    }
    uint8_t body[FT_MOST_BOOK];
    const size_t book_bytes = ft_write_book(&book, body), cost = some.count * book_bytes / USES;
    const size_t before = of->book_bytes > 0 ? measure(builder, of, of->codes, &some, NULL) : some.count * builder->rows.frame_bytes;
    const size_t gain = before / GAIN > cost ? before / GAIN : cost; /* that is worth it */
    if (measure(builder, of, of->trial, &some, NULL) + gain < before) {
        void *codes = of->codes;
        of->codes = of->trial;
        of->trial = codes;
        memcpy(of->book, body, book_bytes);
        of->book_bytes = book_bytes;
        of->version++;
        of->at = -1;
    }
    return of->book_bytes > 0 ? encode(pictures, of, of->codes, frame, limit, NULL) : FT_NO_PICTURE;
}

/* Code a picture by a craft; what that has made of it is at `out`. `expected` is about how many bytes that should be. */
static size_t code_by(ft_builder *builder, craft *of, const uint8_t *frame, size_t limit, size_t expected, bool nothing_helps) {
    ft_pictures *pictures = builder->pictures;
    const bool counted = pictures->seen % (pictures->seen < 4 * GROWING ? STUDY_EVERY : STUDY_RARELY) == 0;
    size_t size = of->book_bytes > 0 ? encode(pictures, of, of->codes, frame, limit, counted ? of->counts : NULL) : FT_NO_PICTURE;
    /* What is much larger than expected may show something new. */
    const uint32_t since = pictures->seen - of->reviewed;
    const bool is_hope = nothing_helps && size == FT_NO_PICTURE && since >= REST;
    const bool is_lost = expected != UNKNOWN && size == FT_NO_PICTURE && since >= LOST;
    const bool is_new = expected != UNKNOWN && size > expected + expected / 4 && since >= SCENE;
    const bool due = (is_hope || is_lost || is_new || pictures->seen >= of->next) && pictures->books + 2 < FT_MOST_BOOKS;
    if (due || pictures->seen % (pictures->seen < 4 * GROWING ? STUDY_EVERY : STUDY_RARELY) == 0) {
        ft_study_frame(pictures->study, of->kind, frame);
    }
    if (due) {
        size = review(builder, of, frame, limit);
        of->reviewed = pictures->seen;
        of->next = pictures->seen + (pictures->seen < REVIEW_EVERY ? pictures->seen : REVIEW_EVERY);
    }
    return size;
}

/* Store the codebook of a craft in the chunk, unless it is there. */
static int store_book(ft_builder *builder, size_t i, craft *of) {
    if (of->at >= 0) {
        return FT_OK;
    }
    if (!ft_make_room_for_data(builder, RECORD_HEADER + of->book_bytes)) {
        return FT_NO_MEMORY;
    }
    uint8_t *target = builder->data + builder->data_bytes;
    ft_put_record_header(target, of->book_bytes, i, BOOK, 0);
    memcpy(target + RECORD_HEADER, of->book, of->book_bytes);
    of->at = (int64_t)(builder->data_bytes + RECORD_HEADER);
    builder->pictures->books++;
    builder->data_bytes += RECORD_HEADER + of->book_bytes;
    memset(builder->data + builder->data_bytes, 0, FT_READ_AHEAD);
    return FT_OK;
}

void ft_shelve_books(ft_pictures *pictures, ft_shelf *shelf, size_t frame_bytes) {
    for (int k = 0; pictures != NULL && k < 2; k++) {
        craft *of = &pictures->crafts[k];
        if (of->at < 0) {
            continue;
        }
        if (of->tables == NULL || of->tabled != of->version) {
            ft_drop_tables(of->tables);
            of->tabled = of->version;
            of->tables = ft_look_on_shelf(shelf, (size_t)of->at);
            if (of->tables != NULL) { /* a reader has made them */
                ft_keep_tables(of->tables);
            } else if (ft_tables_new(of->book, of->book_bytes, frame_bytes, &of->tables) != FT_OK) {
                continue;
            }
        }
        ft_put_on_shelf(shelf, (size_t)of->at, of->tables);
    }
}

/* -- the choice ----------------------------------------------------------------------------------------------------------- */

bool ft_codes_pictures(const stream *of) { return of->picture.mode == PALETTE || of->picture.mode == JOINT; }

size_t ft_limit_patch(const stream *of, size_t limit) {
    return ft_codes_pictures(of) && of->picture.mean < limit ? of->picture.mean : limit;
}

/* Bytes of a sample that are different: eight at a time, each in a byte of a sum. */
static size_t count_different(const uint8_t *before, const uint8_t *frame) {
    const uint64_t ones = UINT64_C(0x0101010101010101), most = ones * 127;
    uint64_t sum = 0;
    for (size_t at = 0; at < SAMPLE; at += 8) {
        uint64_t one, other;
        memcpy(&one, before + at, 8);
        memcpy(&other, frame + at, 8);
        const uint64_t changed = one ^ other;
        sum += (((changed & most) + most) | changed) >> 7 & ones;
    }
    return (size_t)(sum * ones >> 56);
}

bool ft_expects_patch(const ft_builder *builder, size_t i, const uint8_t *before, const uint8_t *frame) {
    const picture_choice *now = &builder->streams[i].picture;
    if (!ft_codes_pictures(&builder->streams[i]) && now->rest == 0) {
        return true;
    }
    const size_t size = builder->rows.frame_bytes, blocks = size / SAMPLE;
    size_t seen = 0, different = 0;
    for (size_t k = SAMPLE_EVERY / 2; k < blocks; k += SAMPLE_EVERY, seen += SAMPLE) {
        different += count_different(before + k * SAMPLE, frame + k * SAMPLE);
    }
    const size_t most = now->rest > 0 ? size / 8 : (size_t)now->mean + now->mean / 4;
    return (uint64_t)different * size <= (uint64_t)most * seen;
}

void ft_note_group(stream *of, bool is_short) {
    of->picture.calm = is_short ? 0 : of->picture.calm + 1;
    of->picture.rest = is_short ? of->picture.rest : 0;
    if (of->picture.calm >= CALM) {
        of->picture.mode = 0;
    }
}

static void note_size(picture_choice *now, int mode, size_t size) {
    now->mean = now->mode == mode && now->mean > 0 ? (uint32_t)((7 * (uint64_t)now->mean + size) / 8) : (uint32_t)size;
    now->mode = mode;
}

/* Whether hardly a byte is like the one beside it or above it, so that nothing but a codec is worth a try. */
static bool looks_like_noise(const ft_rows *rows, const uint8_t *frame) {
    const size_t beside = rows->layout.interleave || rows->layout.pixel == 0 ? 1 : rows->layout.pixel, row = rows->layout.row;
    size_t seen = 0, alike = 0;
    for (size_t first = row; first + row <= rows->frame_bytes; first += SAMPLE_EVERY * row, seen += row - beside) {
        for (size_t at = first + beside; at < first + row; at++) {
            alike += (uint8_t)(frame[at] - frame[at - beside] + 8) <= 16 || frame[at] == frame[at - row];
        }
    }
    return alike * 6 < seen;
}

/* Write a blob of the frame codec to the stream's record. */
static size_t put_blob(uint8_t *record, const uint8_t *blob, size_t size) {
    put_u32(record + RECORD_HEADER, size);
    memcpy(record + RECORD_PATCHES, blob, size);
    return RECORD_PATCHES + size;
}

int ft_begin_picture(ft_builder *builder, size_t i, const uint8_t *frame, const ft_codecs *codecs, int *coder, size_t *end) {
    picture_choice *now = &builder->streams[i].picture;
    const size_t frame_bytes = builder->rows.frame_bytes, limit = frame_bytes - frame_bytes / 8;
    uint8_t *record = builder->rooms[i].records[builder->streams[i].which];
    const bool only_codec = !ft_takes_pictures(&builder->rows);
    const uint8_t *blob = NULL;
    size_t blob_bytes = FT_NO_PICTURE, sizes[2] = {FT_NO_PICTURE, FT_NO_PICTURE};
    *coder = 0;
    if (now->rest > 0) {
        now->rest--;
        if (builder->pictures != NULL) {
            builder->pictures->seen++;
        }
        return FT_OK;
    }
    craft *best = NULL;
    const bool is_hopeless = !only_codec && now->mode == 0 && looks_like_noise(&builder->rows, frame);
    if (!only_codec && !is_hopeless && !(now->mode == CODED && now->since < TRY_OTHERS)) {
        if (builder->pictures == NULL && (builder->pictures = make_pictures(&builder->rows)) == NULL) {
            return FT_NO_MEMORY;
        }
        craft *crafts = builder->pictures->crafts;
        const int first = now->mode == JOINT, other = !first;
        const size_t expected = ft_codes_pictures(&builder->streams[i]) ? now->mean : UNKNOWN;
        builder->pictures->seen++;
        sizes[first] = code_by(builder, &crafts[first], frame, limit, expected, now->mode == 0);
        const bool jumps = sizes[first] == FT_NO_PICTURE || sizes[first] > now->mean + now->mean / 4;
        now->since++;
        if (now->mode == 0 || now->mode == CODED || jumps || now->since >= TRY_OTHERS) {
            sizes[other] = code_by(builder, &crafts[other], frame, sizes[first] < limit ? sizes[first] : limit, UNKNOWN, now->mode == 0);
            now->since = 0;
            now->mean = 0;
        }
        best = &crafts[sizes[other] < sizes[first] ? other : first];
    }
    const size_t size = best != NULL ? sizes[best->kind == JOINT] : FT_NO_PICTURE;
    const bool try_codec = only_codec || now->mode == CODED || now->codec_in == 0;
    if (try_codec) {
        const int result = ft_encode_frame(builder, frame, codecs, &blob, &blob_bytes);
        if (result != FT_OK) {
            return result;
        }
        now->codec_in = TRY_CODEC;
        now->since += best == NULL;
    } else {
        now->codec_in--;
    }
    /* What a codec has made takes long to decode: it has to be a good deal smaller. */
    const bool takes_blob = blob_bytes < frame_bytes && (size == FT_NO_PICTURE || blob_bytes < size - size / 5);
    if (takes_blob) {
        *coder = CODED;
        *end = put_blob(record, blob, blob_bytes);
        note_size(now, CODED, blob_bytes);
    } else if (size != FT_NO_PICTURE) {
        const int result = store_book(builder, i, best);
        if (result != FT_OK) {
            return result;
        }
        *coder = best->kind;
        put_u32(record + RECORD_HEADER, (size_t)best->at);
        put_u32(record + RECORD_PATCHES, size);
        memcpy(record + RECORD_HEADER + BEFORE, best->out, size);
        *end = RECORD_HEADER + BEFORE + size;
        note_size(now, best->kind, size);
    } else {
        now->mode = 0;
        now->rest = only_codec ? 0 : REST;
    }
    return FT_OK;
}
