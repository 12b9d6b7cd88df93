/* The chunk that is open, as the files know it that write it: builder.c, observations.c, coding.c. */
#ifndef FT_BUILDER_H
#define FT_BUILDER_H

#include "objects.h"
#include "values.h"

enum { FT_FIRST_ROOM = 16, FT_FIRST_HASHES = 64 };

/* The frames of an observation, by number, oldest first; FT_ZEROS for zeros. */
typedef int32_t frame_number;

/* How pictures that no patch helps are coded in a stream. */
typedef struct picture_choice {
    int mode;          /* PALETTE, JOINT or CODED; 0 while none is known to help */
    uint32_t mean;     /* of their bytes, the latest count most */
    uint32_t since;    /* pictures since all others were tried */
    uint32_t rest;     /* pictures for which nothing is tried, as nothing helped */
    uint32_t codec_in; /* pictures until the codec is tried, which is slow to decode */
    uint32_t calm;     /* groups in a row that patches were good for */
} picture_choice;

/* Where frames of the open chunk are, found by what they are. It may know frames that have been taken back, or be short of some: whatever
 * it finds is compared byte by byte before it is referred to. */
typedef struct frame_places {
    uint64_t *slots; /* half of a hash, and the number of the frame in its environment + 1; 0 for free */
    size_t n_slots;  /* a power of two; 0 before the first frame */
    size_t count;
} frame_places;

/* One environment. What is in here is kept aside before a row is written, and put back if that fails. */
typedef struct stream {
    bool known;          /* whether `last` is the last observation, and `numbers` are its frames */
    bool tail_holds;     /* whether `tail` is the last stored frame */
    bool follows;        /* whether `before` are the frames of the last view of the row before */
    uint32_t frames;     /* stored ones */
    size_t n_groups, n_exceptions;
    /* The group that is being written. */
    unsigned which;      /* of the two records */
    size_t staged;       /* bytes of it */
    uint32_t group_frames; /* 0 while there is none */
    /* The key frame that patches of this stream are on. */
    int64_t key;         /* its offset, -1 for none */
    size_t key_cost;     /* bytes of all patches on it so far */
    /* The record that groups of this stream begin with, after that key frame. */
    int64_t base;        /* its offset, -1 for none */
    size_t base_cost;    /* bytes of first patches on it that are left until it is given up */
    size_t first_patch;  /* bytes of the first patch of the last group, if it is right on the key frame; 0 otherwise */
    uint32_t short_groups, row_above;
    uint32_t vain;       /* searches for a frame that the chunk holds already which found none, less those that found one */
    picture_choice picture;
    uint32_t coded[FT_MOST_CODERS]; /* frames, see ft_usage */
    /* The row that was written last. */
    uint32_t frames_before;
    unsigned written;    /* views, as bits */
    uint8_t exception[FT_EXCEPTION_BYTES]; /* only of what is kept aside: the last one, which a row that is written again replaces */
} stream;

/* What belongs to a stream and grows; counts are in `stream`, so nothing of it has to be put back. */
typedef struct stream_memory {
    uint8_t *tail, *last, *records[2];
    size_t oldest;             /* the byte of `last` with which its oldest frame begins: where frames lie one after the other, a new one
                                * takes the place of the oldest, and nothing else is copied */
    uint8_t *given_tail;       /* the frame in `tail` as it was given; only where there is a table of values */
    uint8_t *groups, *exceptions;
    size_t groups_room, exceptions_room;
    frame_number *numbers;     /* of the last observation */
    frame_number *cell;        /* of the row that was written last, view by view */
    frame_number *before;      /* of the last view of the row before that */
} stream_memory;

/* A row that is decoded, to be written. */
typedef struct row_copy {
    uint8_t *obs; /* of each view, of each stream */
    size_t *streams[FT_MAX_VIEWS];
    uint8_t *scratch;
} row_copy;

typedef struct ft_pictures ft_pictures;

struct ft_builder {
    ft_rows rows;        /* up to the last commit */
    bool is_changing;    /* whether something was written since, and `saved...` are to be put back if that is not committed */
    size_t most_rows;
    size_t patch_limit;  /* a longer patch does not pay */
    size_t record_bytes; /* of a group that is being written */
    ft_lane *lanes;
    stream *streams, *saved;
    stream_memory *rooms;
    uint8_t *memory, *counts;
    size_t memory_bytes;
    frame_number *number_memory;
    frame_number *saved_numbers;
    uint8_t *block;      /* what is made the chunk: room for its header, then the data; NULL while there is none */
    size_t block_bytes;
    uint8_t *data;       /* in it */
    size_t data_bytes, saved_data_bytes;
    int64_t newest_key, saved_newest_key;
    ft_values *values;   /* NULL where frames are coded as they are */
    size_t saved_values; /* how many there were */
    uint8_t *classes;
    size_t n_classes, classes_room;
    uint32_t *hashes;    /* class + 1, 0 for free */
    size_t n_hashes;     /* a power of two, more than twice the classes */
    size_t staged_row;
    ft_doubt doubt, saved_doubt;
    bool turned;         /* memory order of the last observations */
    uint8_t *frame;      /* scratch: a frame that is taken out of an observation */
    uint8_t *pixels;     /* scratch: what it is made of on the way, or what a codec is given */
    uint8_t *coded;      /* scratch: a frame whose elements have become bytes */
    uint8_t *spare;      /* where the next observation of a stream goes: it changes places with `last` of that. Room for padded frames */
    uint8_t *zeros;
    ft_pictures *pictures; /* NULL before some are first coded */
    ft_shelf shelf;
    uint8_t *base;       /* scratch: a frame that a group begins with */
    ft_catalogue catalogue;
    frame_places places;
    uint8_t *compared;   /* scratch, while a frame is decoded to be compared; NULL otherwise */
    row_copy copy;       /* while rows are copied */
};

/* One group may end early because a life is lost or a level is done. Where several in a row do, frames have nothing to do with
 * each other. */
enum { FT_MANY_SHORT = 2 };

static inline bool references_pay(const stream *of) { return of->short_groups < FT_MANY_SHORT; }

/* Where groups are packed, a codec finds what happens again. */
static inline bool finds_objects(const ft_builder *builder) { return builder->rows.method.references && !builder->rows.method.packs; }

static inline uint8_t *last_exception(const ft_builder *builder, size_t i) {
    return builder->rooms[i].exceptions + (builder->streams[i].n_exceptions - 1) * FT_EXCEPTION_BYTES;
}

/* -- coding.c: frames in groups ------------------------------------------------------------------------------------------- */

/* Make sure that `bytes` more fit behind `used`; what readers see of it moves along. */
bool ft_make_room(uint8_t **memory, size_t *room, size_t used, size_t bytes, size_t first, const uint8_t **seen);
/* Bytes that the record of a group may have while it is being written. */
size_t ft_measure_record(const ft_rows *rows, size_t patch_limit);
/* Store a frame, unless the chunk holds it already and to refer to it takes less; `*number` is that of the frame. */
int ft_store_frame(ft_builder *builder, size_t stream, const uint8_t *frame, const ft_codecs *codecs, frame_number *number);
/* What readers have to know of a stream, with what is staged. */
void ft_describe_lane(const ft_builder *builder, size_t stream, ft_lane *lane);
void ft_clear_places(frame_places *known);
/* Have the block be of so many bytes, which is no fewer than are in use. */
bool ft_resize_block(ft_builder *builder, size_t bytes);
/* Move the record of a stream's open group to the data. */
int ft_close_group(ft_builder *builder, size_t stream, const ft_codecs *codecs);

/* Room for so many bytes behind the data; where a record begins that has been put there, after which there is more data. */
bool ft_make_room_for_data(ft_builder *builder, size_t bytes);
void ft_put_record_header(uint8_t *record, size_t body, size_t stream, int coder, uint32_t frames);

/* -- pictures.c: frames that no patch helps ------------------------------------------------------------------------------- */

/* Whether frames are pictures that can be coded here, rather than by a codec. */
bool ft_takes_pictures(const ft_rows *rows);
/* Whether a patch on another frame is worth a try: not where pictures are being coded that have little in common with it. */
bool ft_expects_patch(const ft_builder *builder, size_t stream, const uint8_t *before, const uint8_t *frame);
/* Whether the stream's pictures have been coded here lately, and were smaller for it. */
bool ft_codes_pictures(const stream *of);
/* Longest patch that is worth it for a stream, `limit` at most: a picture may be shorter. */
size_t ft_limit_patch(const stream *of, size_t limit);
/* Write the first frame of a group to the stream's record, by whichever way is the shortest. `*coder` is that, 0 where there is none;
 * `*end` is where the record ends. */
int ft_begin_picture(ft_builder *builder, size_t stream, const uint8_t *frame, const ft_codecs *codecs, int *coder, size_t *end);
/* Note that a group has ended, which patches were good for or not. */
void ft_note_group(stream *of, bool is_short);
/* Code a frame by the frame codec. */
int ft_encode_frame(ft_builder *builder, const uint8_t *frame, const ft_codecs *codecs, const uint8_t **blob, size_t *size);
/* What belongs to a chunk: another one begins; keep it, and put it back. */
void ft_begin_pictures(ft_pictures *pictures);
void ft_save_pictures(ft_pictures *pictures);
void ft_restore_pictures(ft_pictures *pictures);
void ft_free_pictures(ft_pictures *pictures);
/* Put the tables of the latest codebooks on the shelf of the chunk that they are in: the same ones as on those before it, mostly, so
 * that they take little memory and stay in a cache. */
void ft_shelve_books(ft_pictures *pictures, ft_shelf *shelf, size_t frame_bytes);

/* -- observations.c: which frames an observation is made of, and rows that do not follow from the row before -------------- */

/* Find out which frames an observation is made of, and store those that are new. `moves` is whether one that is moved on by a
 * frame is expected, rather than the last one again. */
int ft_write_observation(ft_builder *builder, size_t stream, const uint8_t *obs, bool moves, const ft_codecs *codecs);
/* Copy the last observation of a stream, as it lies in memory, and have it lie in `last` like that. */
void ft_copy_last(const ft_builder *builder, size_t stream, uint8_t *out);
void ft_straighten_last(ft_builder *builder, size_t stream);
/* Bring the last observations into another memory order. */
void ft_set_order(ft_builder *builder, bool turned);
/* Note which streams do not follow from the row before. */
int ft_note_exceptions(ft_builder *builder, size_t row);

#endif
