/* Frames in groups: each is a patch on the one before it, the first of them on a key frame, or coded by itself. */
#include "builder.h"

#include <string.h>

enum {
    BLOCK_STEP = 1 << 14, /* bytes that the block grows by at least */
    PAGE = 4096,
};

size_t ft_measure_record(const ft_rows *rows, size_t patch_limit) {
    const size_t frame = rows->frame_bytes;
    if (!rows->method.references) {
        return RECORD_HEADER + frame + FT_READ_AHEAD;
    }
    const size_t full = frame + (((size_t)1 << rows->method.shift) - 1) * patch_limit;
    const size_t most = 3 * frame + 64, least = frame + 64 + RECORD_NUMBER, patches = full < most ? full : most;
    return RECORD_PATCHES + (patches > least ? patches : least) + FT_READ_AHEAD;
}

/* -- room for more -------------------------------------------------------------------------------------------------------- */

bool ft_make_room(uint8_t **memory, size_t *room, size_t used, size_t bytes, size_t first, const uint8_t **seen) {
    if (bytes <= *room && used <= *room - bytes) {
        return true;
    }
    size_t larger = *room > 0 ? *room + *room / 2 : first;
    larger = larger > used + bytes ? larger : used + bytes;
    uint8_t *moved = ft_resize(*memory, larger, 1);
    if (moved == NULL) {
        return false;
    }
    *memory = moved;
    *room = larger;
    *seen = moved;
    return true;
}

bool ft_resize_block(ft_builder *builder, size_t bytes) {
    uint8_t *block = ft_resize_pages(builder->block, builder->block_bytes, bytes);
    if (block == NULL) {
        return false;
    }
    builder->block = block;
    builder->block_bytes = bytes;
    builder->data = block + FT_CHUNK_HEADER;
    builder->rows.data = builder->data;
    return true;
}

bool ft_make_room_for_data(ft_builder *builder, size_t bytes) {
    const size_t wanted = FT_CHUNK_HEADER + builder->data_bytes + bytes + FT_READ_AHEAD;
    if (wanted <= builder->block_bytes) {
        return true;
    }
    const size_t quarter = builder->block_bytes / 4, larger = builder->block_bytes + (quarter > BLOCK_STEP ? quarter : BLOCK_STEP);
    return ft_resize_block(builder, ((larger > wanted ? larger : wanted) + PAGE - 1) / PAGE * PAGE);
}

/* -- groups --------------------------------------------------------------------------------------------------------------- */

void ft_put_record_header(uint8_t *record, size_t body, size_t i, int coder, uint32_t frames) {
    put_u32(record, body);
    put_u16(record + 4, i & 0xFFFF);
    record[RECORD_CODER] = (uint8_t)coder;
    record[RECORD_CODER + 1] = (uint8_t)frames;
}

/* Note where the record of a stream's newest group lies. */
static void set_group(ft_builder *builder, size_t i, size_t group, size_t offset, size_t first) {
    uint8_t *entry = builder->rooms[i].groups + group * FT_GROUP_BYTES;
    put_u32(entry, offset);
    put_u16(entry + 4, first);
}

static bool room_for_group(ft_builder *builder, size_t i) {
    stream_memory *of = &builder->rooms[i];
    return ft_make_room(&of->groups, &of->groups_room, builder->streams[i].n_groups * FT_GROUP_BYTES, FT_GROUP_BYTES,
                     FT_FIRST_ROOM * FT_GROUP_BYTES, &builder->lanes[i].groups);
}

/* Red, green and blue of a pixel have more to do with each other than neighbours have, so codecs get them side by side. */
int ft_encode_frame(ft_builder *builder, const uint8_t *frame, const ft_codecs *codecs, const uint8_t **blob, size_t *size) {
    const ft_layout *layout = &builder->rows.layout;
    if (layout->interleave) {
        uint8_t *pixels = builder->frames + (2 * layout->depth + 1) * builder->rows.stride;
        ft_active->transpose(frame, pixels, layout->planes, ft_count_pixels(layout), layout->item);
        frame = pixels;
    }
    return codecs->encode(codecs->context, FT_FRAME_CODEC, frame, builder->rows.frame_bytes, blob, size);
}

int ft_close_group(ft_builder *builder, size_t i, const ft_codecs *codecs) {
    stream *of = &builder->streams[i];
    if (of->group_frames == 0) {
        return FT_OK;
    }
    uint8_t *record = builder->rooms[i].records[of->which];
    const size_t body = of->staged - RECORD_HEADER;
    const uint8_t *blob = NULL;
    size_t size = 0;
    if (builder->rows.method.packs && record[RECORD_CODER] == KEYED) {
        const int coded = codecs->encode(codecs->context, FT_GROUP_CODEC, record + RECORD_HEADER, body, &blob, &size);
        if (coded != FT_OK) {
            return coded;
        }
        if (size + RECORD_NUMBER >= body) {
            blob = NULL;
        }
    }
    const size_t length = blob != NULL ? RECORD_PATCHES + size : of->staged;
    if (!ft_make_room_for_data(builder, length)) {
        return FT_NO_MEMORY;
    }
    uint8_t *target = builder->data + builder->data_bytes;
    if (blob != NULL) {
        ft_put_record_header(target, RECORD_NUMBER + size, i, PACKED, of->group_frames);
        put_u32(target + RECORD_HEADER, body);
        memcpy(target + RECORD_PATCHES, blob, size);
    } else {
        ft_active->copy(target, record, length);
        ft_put_record_header(target, body, i, record[RECORD_CODER], of->group_frames);
    }
    set_group(builder, i, of->n_groups - 1, builder->data_bytes, of->frames - of->group_frames);
    builder->data_bytes += length;
    memset(builder->data + builder->data_bytes, 0, FT_READ_AHEAD);
    of->group_frames = 0;
    of->which = builder->saved[i].which ^ 1; /* the other record is there until the row is committed */
    return FT_OK;
}

static size_t encode_patch(ft_builder *builder, size_t i, const uint8_t *before, const uint8_t *frame, size_t start, size_t limit) {
    const size_t most = builder->record_bytes - FT_READ_AHEAD, stop = start + limit < most ? start + limit : most;
    return ft_active->encode(before, frame, builder->rows.frame_bytes, builder->rows.layout.row, builder->zeros,
                             &builder->streams[i].row_above, builder->rooms[i].records[builder->streams[i].which], start, stop);
}

static void begin_record(ft_builder *builder, size_t i, int coder, size_t number, size_t staged) {
    uint8_t *record = builder->rooms[i].records[builder->streams[i].which];
    ft_put_record_header(record, 0, i, coder, 0);
    put_u32(record + RECORD_HEADER, number);
    builder->streams[i].staged = staged;
}

/* Write the first patch of a group, on a key frame. */
static size_t encode_first(ft_builder *builder, size_t i, int64_t key, const uint8_t *frame) {
    const stream *of = &builder->streams[i];
    if (!ft_expects_patch(builder, i, builder->data + key, frame)) {
        return FT_NO_PATCH;
    }
    const size_t limit = references_pay(of) ? builder->rows.frame_bytes / 2 : builder->patch_limit;
    return encode_patch(builder, i, builder->data + key, frame, RECORD_PATCHES, ft_limit_patch(of, limit));
}

/* Begin a group with a patch on a key frame that is there. */
static bool begin_with_patch(ft_builder *builder, size_t i, const uint8_t *frame) {
    stream *of = &builder->streams[i];
    const size_t patches = RECORD_PATCHES, frame_bytes = builder->rows.frame_bytes;
    const int64_t newest = builder->newest_key;
    /* A key frame is given up once patches on it have cost as much as two and a half frames: that is never far from the best
     * possible, and with several streams, the smallest in practice. */
    const size_t most = 2 * frame_bytes + frame_bytes / 2;
    int64_t key = of->key;
    size_t end = key >= 0 ? encode_first(builder, i, key, frame) : FT_NO_PATCH;
    size_t cost = end != FT_NO_PATCH ? of->key_cost + end - patches : SIZE_MAX;
    if (cost > most && newest >= 0 && newest != key) {
        /* Before another one is stored, the newest one is taken, which may be another stream's: environments of one game look
         * alike. It is as good as a new one, unless it is a different scene. */
        const size_t other = encode_first(builder, i, newest, frame);
        if (other != FT_NO_PATCH && (end == FT_NO_PATCH || other - patches <= 2 * (end - patches))) {
            key = newest;
            end = other;
            cost = end - patches;
        }
    }
    if (cost > most) {
        return false;
    }
    of->key = key;
    of->key_cost = cost;
    begin_record(builder, i, KEYED, (size_t)key, end);
    return true;
}

static int begin_with_key(ft_builder *builder, size_t i, const uint8_t *frame) {
    stream *of = &builder->streams[i];
    const size_t frame_bytes = builder->rows.frame_bytes, patches = RECORD_PATCHES;
    if (!ft_make_room_for_data(builder, RECORD_HEADER + frame_bytes)) {
        return FT_NO_MEMORY;
    }
    uint8_t *target = builder->data + builder->data_bytes;
    ft_put_record_header(target, frame_bytes, i, KEY, 0);
    ft_active->copy(target + RECORD_HEADER, frame, frame_bytes);
    builder->newest_key = of->key = (int64_t)(builder->data_bytes + RECORD_HEADER);
    of->key_cost = 0;
    builder->data_bytes += RECORD_HEADER + frame_bytes;
    memset(builder->data + builder->data_bytes, 0, FT_READ_AHEAD);
    begin_record(builder, i, KEYED, (size_t)of->key, patches + PATCH_PREFIX);
    memset(builder->rooms[i].records[of->which] + patches, 0, PATCH_PREFIX); /* a patch that changes nothing */
    return FT_OK;
}

static int open_group(ft_builder *builder, size_t i, const uint8_t *frame, const ft_codecs *codecs) {
    stream *of = &builder->streams[i];
    if (!room_for_group(builder, i)) {
        return FT_NO_MEMORY;
    }
    of->coded[KEYED]++;
    if (!begin_with_patch(builder, i, frame)) {
        of->coded[KEYED]--;
        int coder = 0, result = FT_OK;
        size_t end = 0;
        if (!references_pay(of) || ft_codes_pictures(of)) {
            result = ft_begin_picture(builder, i, frame, codecs, &coder, &end);
        }
        if (result == FT_OK && coder != 0) {
            ft_put_record_header(builder->rooms[i].records[of->which], 0, i, coder, 0);
            of->staged = end;
        } else if (result == FT_OK) {
            coder = KEY;
            result = begin_with_key(builder, i, frame);
        }
        of->coded[coder]++;
        if (result != FT_OK) {
            return result;
        }
    }
    set_group(builder, i, of->n_groups++, 0, of->frames);
    of->group_frames = 1;
    return FT_OK;
}

/* Store a frame by itself, with the codec. */
static int store_alone(ft_builder *builder, size_t i, const uint8_t *frame, const ft_codecs *codecs) {
    const uint8_t *blob;
    size_t size;
    int coder = BLOB;
    const int coded = ft_encode_frame(builder, frame, codecs, &blob, &size);
    if (coded != FT_OK) {
        return coded;
    }
    if (size >= builder->rows.frame_bytes) {
        blob = frame;
        size = builder->rows.frame_bytes;
        coder = RAW;
    }
    if (!room_for_group(builder, i) || !ft_make_room_for_data(builder, RECORD_HEADER + size)) {
        return FT_NO_MEMORY;
    }
    uint8_t *target = builder->data + builder->data_bytes;
    ft_put_record_header(target, size, i, coder, 1);
    memcpy(target + RECORD_HEADER, blob, size);
    set_group(builder, i, builder->streams[i].n_groups++, builder->data_bytes, builder->streams[i].frames);
    builder->data_bytes += RECORD_HEADER + size;
    builder->streams[i].coded[coder]++;
    memset(builder->data + builder->data_bytes, 0, FT_READ_AHEAD);
    return FT_OK;
}

static int store_in_group(ft_builder *builder, size_t i, const uint8_t *frame, const ft_codecs *codecs) {
    stream *of = &builder->streams[i];
    if (of->tail_holds && of->group_frames > 0 && of->group_frames < 1u << builder->rows.method.shift &&
        ft_expects_patch(builder, i, builder->rooms[i].tail, frame)) {
        const size_t limit = ft_limit_patch(of, builder->patch_limit);
        const size_t end = encode_patch(builder, i, builder->rooms[i].tail, frame, of->staged, limit);
        if (end != FT_NO_PATCH) {
            of->staged = end;
            of->group_frames++;
            of->coded[KEYED]++;
            return FT_OK;
        }
    }
    if (of->group_frames > 0) { /* a group that ends with its chunk is not counted */
        const bool is_short = of->group_frames < 1u << builder->rows.method.shift >> 1;
        ft_note_group(of, is_short);
        of->short_groups = !is_short ? 0 : references_pay(of) ? of->short_groups + 1 : FT_MANY_SHORT;
    }
    const int result = ft_close_group(builder, i, codecs);
    return result == FT_OK ? open_group(builder, i, frame, codecs) : result;
}

int ft_store_frame(ft_builder *builder, size_t i, const uint8_t *frame, const ft_codecs *codecs) {
    stream *of = &builder->streams[i];
    const int result = builder->rows.method.references ? store_in_group(builder, i, frame, codecs)
                                                       : store_alone(builder, i, frame, codecs);
    if (result == FT_OK) {
        ft_active->copy(builder->rooms[i].tail, frame, builder->rows.frame_bytes);
        of->tail_holds = true;
        of->frames++;
    }
    return result;
}
