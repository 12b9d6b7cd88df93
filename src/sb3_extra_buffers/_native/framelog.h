/*
 * The frame log: observations of parallel environments, each frame kept once and coded against earlier ones.
 *
 * One header for the whole core. Nothing here knows Python. A store is not safe for threads by itself: whoever calls
 * holds a lock, or makes sure that all calls at one time only read.
 *
 * Words: a *stream* is one environment. Its frames are numbered upwards. `number >> shift` is the *group* that a frame
 * is in; the directory says where each group lies. A *cell* is a place in an index that holds an observation: the number
 * of its newest frame, and the *pattern*, which tells the others relative to that one.
 */
#ifndef FRAMELOG_H
#define FRAMELOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fl_result {
    FL_OK = 0,
    FL_DAMAGED = -1,    /* stored bytes do not make sense */
    FL_NO_MEMORY = -2,  /* fl_refused_bytes() tells how much was asked for */
    FL_OUTSIDE = -3,    /* there is no such cell */
    FL_CODEC = -4,      /* a codec has failed; the caller knows how */
    FL_NO_NUMBERS = -5, /* a stream has more frames in use than can be told apart */
    FL_INVALID = -6,    /* sizes that make no sense together */
};

enum {
    FL_READ_AHEAD = 8,   /* bytes after a patch that may be read, though they mean nothing */
    FL_WRITE_AHEAD = 32, /* bytes after a frame that may be written while it is decoded */
    FL_KEY_ALIGNMENT = 8,
    FL_MAX_DEPTH = 64,
    FL_MAX_PARTS = 2,    /* arrays written or read together */
};

/* Sizes that tests make small, so that what happens once in a million frames happens at every other write. Each is looked at when
 * something is made or grows, not afterwards. */
typedef struct fl_limits {
    size_t first_room;       /* of tables that grow: segments, and groups in the directory */
    size_t block_rows;       /* rows of an index whose oldest frame is known together */
    size_t min_segment;      /* bytes */
    size_t first_check;      /* frames that may wait before anybody looks whether they are still in use */
    size_t narrow_patterns;  /* that an index tells apart with 16 bits */
    uint64_t frame_numbers;  /* that an index tells apart */
} fl_limits;
extern fl_limits fl_limits_in_use;

#define FL_ZERO (-1)               /* in place of a frame's number: zeros, which are not stored */
#define FL_NO_FRAME INT64_MAX      /* "the oldest frame" where there is none */
#define FL_OPEN_BIT (UINT64_C(1) << 63)

/* -- what a caller brings ---------------------------------------------------------------------------------------- */

/* How an observation splits into frames. In C order it is `outer` blocks of `depth` parts of `part` bytes; a frame is the
 * `outer` parts of one of them. Where `can_turn`, the stack may also be the last axis in memory (channels last). */
typedef struct fl_layout {
    size_t item;   /* bytes an element */
    size_t outer;
    size_t depth;  /* frames in an observation */
    size_t part;
    size_t planes; /* planes of the stack's axis that make one frame */
    size_t row;    /* bytes of a row of a frame; 0 where it has only one */
    bool can_turn;
    bool interleave; /* codecs get the planes of a frame pixel by pixel */
} fl_layout;

typedef struct fl_method {
    bool references; /* frames are coded against others; else each by itself, by the codec */
    bool packs;      /* a second codec works on whole groups */
    uint32_t shift;  /* two to this power is the most frames in a group */
} fl_method;

enum { FL_FRAME_CODEC = 0, FL_GROUP_CODEC = 1 };

/* The only way out of this core. Both return 0, FL_DAMAGED or FL_CODEC. A blob stays valid until the next `encode`. */
typedef struct fl_codecs {
    void *context;
    int (*encode)(void *context, int which, const uint8_t *data, size_t size, const uint8_t **blob, size_t *blob_size);
    int (*decode)(void *context, int which, const uint8_t *blob, size_t blob_size, uint8_t *data, size_t size);
} fl_codecs;

/* -- the log ------------------------------------------------------------------------------------------------------- */

/* A block of coded bytes. They are appended and never changed; whole segments are used again. */
typedef struct fl_segment {
    void *block;         /* owns what the others point to; NULL while the segment is idle and has no memory */
    uint8_t *bytes;      /* `segment_bytes`, and FL_READ_AHEAD more */
    int64_t *last_group; /* for each stream, -1 for none */
    size_t used;
    size_t reserved;     /* bytes of groups that are open here: a group ends in the segment of its key frame */
    size_t frames;
    int64_t newest_key;  /* offset of the key frame stored last, or -1 */
} fl_segment;

typedef struct fl_log {
    size_t segment_bytes;
    size_t n_streams;
    fl_segment *segments;
    uint32_t *order; /* segments in use, oldest first */
    uint32_t *idle;  /* segments to be used again */
    size_t count, in_use, n_idle, room;
    size_t opened;   /* since it was last asked what can be released */
    size_t looks;    /* how often that was asked while the newest one is being filled */
    int64_t kept;    /* the newest one when a write began: not released before that is done; -1 for none */
} fl_log;

/* Where groups lie: for each stream a ring of locations, `segment << 32 | offset`. An open group is FL_OPEN_BIT | stream. */
typedef struct fl_directory {
    uint64_t *locations; /* n_streams x capacity, at `group % capacity` */
    int64_t *oldest;     /* the first group that is kept, for each stream */
    size_t capacity;
    size_t most;         /* capacity that is never exceeded, so that no two frames in use share 32 bits of their number */
} fl_directory;

/* Distances of an observation's frames from the newest one. 0 is a cell that was never written, 1 consecutive frames. */
typedef struct fl_patterns {
    size_t depth;
    int32_t *offsets; /* room x depth, FL_ZERO for zeros */
    int32_t *reach;   /* the largest of each; FL_ZERO where all are zeros */
    uint32_t *table;  /* hash table of numbers, 0 for free */
    size_t count, room, table_room;
} fl_patterns;

enum { FL_UNWRITTEN = 0, FL_RUN = 1 };

typedef struct fl_entry {
    uint32_t newest;  /* low 32 bits of its number */
    uint32_t pattern;
} fl_entry;

/* The cells of one array. Cell `c` belongs to stream `c % n_streams`. */
typedef struct fl_index {
    size_t cells;
    uint32_t *newest;
    void *patterns;       /* uint16_t, or uint32_t where `wide` */
    bool wide;
    size_t block_cells, blocks;
    int64_t *oldest;      /* blocks x n_streams: the oldest frame in use, found when it was last asked */
    uint8_t *written;     /* blocks that were written since */
    uint64_t overwritten; /* cells that were written again since it was last asked */
} fl_index;

/* One environment. */
typedef struct fl_stream {
    int64_t head;         /* number of the last stored frame, -1 before the first */
    uint8_t *tail;        /* that frame, padded */
    uint8_t *last;        /* the last observation as it lay in memory; in `tail` where an observation is a frame */
    int64_t *numbers;     /* of the frames of the last observation, oldest first */
    fl_entry entry;       /* of the last observation */
    int64_t pinned;       /* in use from here on while a write is under way, as it may be undone; FL_NO_FRAME for none */
    size_t run;           /* how many of `numbers`, from the newest on, are consecutive */
    bool known;           /* whether `last`, `numbers` and `entry` hold */
    bool tail_is_newest;  /* whether `tail` is the newest frame of `last` */
    /* The group that is being written. */
    uint8_t *staging;     /* its record so far */
    size_t staged;        /* bytes of it; as many are reserved in its segment */
    uint32_t frames;      /* 0 while there is none */
    uint32_t segment;
    int64_t group;        /* its number, or that of the last one */
    int64_t ended_at;     /* offset of the first group that has ended since a write began; -1 for none */
    /* The key frame that patches of this stream are on. */
    int64_t key_segment;  /* -1 for none */
    size_t key_offset;
    size_t key_cost;      /* bytes of all patches on it so far */
    uint32_t short_groups; /* how many of the last groups ended early, FL_MANY_SHORT at most */
    uint32_t row_above;   /* above 1: for how many frames and one the row above is taken at once; 1: it was better last time */
} fl_stream;

/* One group may end early because a life is lost or a level is done. Where several in a row do, frames have nothing to do with
 * each other. */
enum { FL_MANY_SHORT = 2 };

static inline bool fl_references_pay(const fl_stream *stream) { return stream->short_groups < FL_MANY_SHORT; }

/* What a write changes, as it was before. */
typedef struct fl_before {
    fl_stream *streams; /* those that are written, each at its own place; what they point to goes on changing */
    int64_t *numbers;   /* theirs */
    uint64_t *moved;    /* scratch */
    size_t used, frames; /* of the segment `kept` */
    int64_t newest_key;
    size_t patterns;
    uint64_t writes, strays, strays_since;
} fl_before;

/* How often something has been done, for tests: rarely enough is part of what they look at. */
typedef struct fl_work {
    uint64_t rebuilds;
    uint64_t reclaims;
    uint64_t segments_looked_at;
} fl_work;

typedef struct fl_store {
    fl_layout layout;
    fl_method method;
    size_t n_streams;
    size_t frame_bytes, obs_bytes;
    size_t stride;       /* bytes from one padded frame to the next */
    size_t patch_limit;  /* a longer patch does not pay */
    size_t staging_bytes;
    fl_log log;
    fl_directory directory;
    fl_patterns patterns;
    fl_stream *streams;
    uint8_t *memory;     /* owns tails, last observations, staging and scratch of all streams */
    int64_t *numbers;    /* owns theirs */
    uint8_t *spare;      /* where the next observation of a stream goes: it changes places with `last` of that */
    uint8_t *frames;     /* scratch: 2 x depth padded frames */
    uint8_t *zeros;      /* a row of them */
    fl_entry *entries;   /* scratch: FL_MAX_PARTS x n_streams, of a write under way */
    size_t n_entries;
    fl_before before;
    bool turned;         /* memory order of the last observations */
    fl_index **indexes;
    size_t n_indexes;
    uint64_t writes;     /* of one observation of each stream */
    size_t frames_before_check;
    bool wants_compaction;
    size_t pattern_limit;
    /* Observations that neither follow from the last one nor begin an episode speak against the layout. */
    uint64_t strays, strays_since, patience;
    fl_work work;
} fl_store;

/* -- store.c: life of a store -------------------------------------------------------------------------------------- */

bool fl_layout_makes_sense(const fl_layout *layout);
fl_store *fl_store_new(const fl_layout *layout, const fl_method *method, size_t n_streams, int *result);
void fl_store_free(fl_store *store);
int fl_new_index(fl_store *store, size_t cells);             /* its number, or an error */
int fl_clear(fl_store *store);                               /* forget all observations; memory stays */
/* The last observation of a stream, in C order; false where there is none. */
bool fl_last_observation(const fl_store *store, size_t stream, uint8_t *out);
bool fl_layout_in_doubt(const fl_store *store);
uint64_t fl_written_cells(const fl_store *store);
size_t fl_stored_frames(const fl_store *store);
size_t fl_stored_bytes(const fl_store *store);               /* records, and groups that are open */
size_t fl_index_bytes(const fl_store *store);                /* what it takes to find them */
size_t fl_held_bytes(const fl_store *store);                 /* all segments */

/* -- rebuild.c ----------------------------------------------------------------------------------------------------- */

/* Store everything again, by another layout or to be rid of what is not in use. Whole or not at all. */
int fl_rebuild(fl_store *store, const fl_layout *layout, const fl_codecs *codecs);

/* -- image.c: a store as bytes ------------------------------------------------------------------------------------- */

size_t fl_image_bytes(const fl_store *store, int64_t only_index);
void fl_image_save(const fl_store *store, int64_t only_index, uint8_t *out);
/* Whatever the bytes are, the store that comes out of them is safe to use; what makes no sense is FL_DAMAGED. */
fl_store *fl_image_load(const uint8_t *image, size_t size, int *result, const char **what);

/* -- write.c ------------------------------------------------------------------------------------------------------- */

typedef struct fl_write_part {
    fl_index *index;
    const uint8_t *obs; /* observations one after the other, as they lie in memory */
    bool turned;        /* whether the stack is the last axis there */
} fl_write_part;

/* Write `count` observations of distinct streams to the same cells of one array or two. Cells are `first` and those that
 * follow, or `cells`. All of it is written or nothing. */
int fl_write(fl_store *store, const fl_write_part *parts, size_t n_parts, int64_t first, const int64_t *cells, size_t count,
             const fl_codecs *codecs);

/* -- undo.c -------------------------------------------------------------------------------------------------------- */

/* The streams of a write. */
typedef struct fl_written {
    int64_t first;
    const int64_t *cells; /* NULL where they follow `first` */
    size_t count;
} fl_written;

void fl_remember(fl_store *store, const fl_written *what);
/* Give back what was stored since. Codecs are asked for what was overwritten in memory, if there are any; what they cannot tell is
 * stored again with the next observation. */
void fl_undo(fl_store *store, const fl_written *what, const fl_codecs *codecs);
void fl_forget(fl_store *store);

/* -- groups.c ------------------------------------------------------------------------------------------------------ */

/* Store a frame: it is the stream's head then, or nothing has changed. */
int fl_store_frame(fl_store *store, size_t stream, const uint8_t *frame, const fl_codecs *codecs);
void fl_set_location(fl_store *store, size_t stream, int64_t group, uint64_t location);
/* Move a stream's open group to the log, as it is or as the blob that the group codec made of it; NULL for none. */
void fl_end_group(fl_store *store, size_t stream, const uint8_t *blob, size_t blob_size);

/* -- read.c -------------------------------------------------------------------------------------------------------- */

typedef struct fl_read_part {
    const fl_index *index;
    uint8_t *out; /* `count` observations, in C order */
} fl_read_part;

/* Having a smaller output decoded by two takes longer than it saves; waking somebody up for it takes longer still. */
#define FL_WORTH_SHARING ((size_t)1 << 20)
#define FL_WORTH_WAKING ((size_t)1 << 21)

/* Whether a read of so many bytes may be shared by two. */
bool fl_shares(const fl_store *store, size_t bytes);

/* Read from the same cells of one array or two: `rows[i] * n_streams + columns[i]`, or `rows[i]` where there are no
 * columns. With `threads` of 2, a helper takes part where the output is large. */
int fl_read(const fl_store *store, const fl_read_part *parts, size_t n_parts, const int64_t *rows, const int64_t *columns,
            size_t count, int threads, const fl_codecs *codecs);

/* -- log.c --------------------------------------------------------------------------------------------------------- */

int fl_log_init(fl_log *log, size_t segment_bytes, size_t n_streams);
void fl_log_free(fl_log *log);
int fl_log_open_segment(fl_log *log);
void fl_log_clear(fl_log *log);
void fl_log_release(fl_log *log, const int64_t *oldest_group);
void fl_log_close_after(fl_log *log, int64_t segment); /* those that were opened after it; all for -1 */
bool fl_log_is_idle(const fl_log *log, int64_t segment);
int fl_directory_init(fl_directory *directory, size_t n_streams, uint32_t shift);
int fl_directory_grow(fl_directory *directory, size_t n_streams);

/* -- index.c ------------------------------------------------------------------------------------------------------- */

int fl_patterns_init(fl_patterns *patterns, size_t depth);
void fl_patterns_free(fl_patterns *patterns);
int64_t fl_patterns_intern(fl_patterns *patterns, const int32_t *offsets); /* its number, or an error */
void fl_patterns_shorten(fl_patterns *patterns, size_t count); /* forget those from `count` on */
int fl_index_init(fl_index *index, size_t cells, size_t n_streams);
void fl_index_free(fl_index *index);
int fl_index_widen(fl_index *index);
void fl_index_clear(fl_index *index, size_t n_streams);

/* -- reclaim.c ----------------------------------------------------------------------------------------------------- */

/* The oldest frame in use of each stream, from all indexes, the last observations, and a write under way. */
void fl_oldest_frames(fl_store *store, int64_t *oldest);
void fl_reclaim(fl_store *store);

/* -- kernels.c: whole kernels, the best for this processor ---------------------------------------------------------- */

#define FL_NO_PATCH ((size_t)-1)

typedef struct fl_kernels {
    const char *name;
    /* Write the patch that makes `now`, on `before` or on itself one row up, whichever is smaller. Returns where it ends,
     * or FL_NO_PATCH where it does not fit before `stop`. */
    size_t (*encode)(const uint8_t *before, const uint8_t *now, size_t size, size_t row, const uint8_t *zeros,
                     uint32_t *row_above, uint8_t *out, size_t pos, size_t stop);
    /* Change a frame as a patch of `length` bytes says. FL_READ_AHEAD after the patch are read, FL_WRITE_AHEAD after the
     * frame are written; of the frame only `size` bytes change for good. Tells whether the patch is sound. */
    bool (*apply)(const uint8_t *patch, size_t length, uint8_t *frame, size_t size, size_t row);
    /* Copy bytes to somewhere else. */
    void (*copy)(uint8_t *target, const uint8_t *source, size_t size);
    /* Whether bytes are equal; `a` is what comes from outside. */
    bool (*same)(const uint8_t *a, const uint8_t *b, size_t size);
    /* A stack of four one-byte frames side by side: whether it is the old one moved on by a frame. Then `newest` is that frame, and
     * `copy` is the same as `now`. */
    bool (*moved_words)(const uint8_t *now, const uint8_t *before, size_t pixels, uint8_t *newest, uint8_t *copy);
    /* Bytes `first` to `first + width` of each block of a row of blocks, to or from packed memory. */
    void (*gather)(const uint8_t *blocks, size_t count, size_t block, size_t first, size_t width, uint8_t *packed);
    void (*scatter)(const uint8_t *packed, size_t count, size_t block, size_t first, size_t width, uint8_t *blocks);
    /* Rows of values become columns. */
    void (*transpose)(const uint8_t *source, uint8_t *target, size_t rows, size_t columns, size_t item);
} fl_kernels;

const fl_kernels *fl_best_kernels(void);
const fl_kernels *fl_kernels_named(const char *name); /* NULL where this processor has none of that name */
extern const fl_kernels *fl_active;                   /* what the core uses */

/* Bytes of the patch at `patch`, 0 where there is no whole one in `size` bytes; whether it needs no reference. */
size_t fl_patch_length(const uint8_t *patch, size_t size);
bool fl_patch_stands_alone(const uint8_t *patch, size_t length);

/* -- tree.c: sums for prioritized replay ----------------------------------------------------------------------------- */

void fl_tree_set(double *sums, size_t first_leaf, const int64_t *leaves, const double *values, size_t count);
void fl_tree_find(const double *sums, size_t first_leaf, const double *targets, int64_t *leaves, size_t count);

/* -- memory.c --------------------------------------------------------------------------------------------------------- */

void *fl_alloc(size_t count, size_t size);  /* zeroed; NULL and fl_refused_bytes() where there is none */
void *fl_resize(void *memory, size_t count, size_t size); /* what is new is not zeroed */
void fl_free(void *memory);
void *fl_alloc_pages(size_t size);          /* zeroed, straight from the system */
void fl_free_pages(void *memory, size_t size);
/* Make such memory larger or smaller; it may move, and what is new is not zeroed. NULL where that cannot be: it is as it was then. */
void *fl_resize_pages(void *memory, size_t size, size_t wanted);
#define FL_MORE_THAN_ALL SIZE_MAX           /* in place of bytes: so many that the number has no room */
size_t fl_refused_bytes(void);
int64_t fl_refuse_allocation(int64_t after); /* for tests: refuse one, after that many; negative for none. What was left. */
size_t fl_padded(size_t size);              /* whole words and one more */

/* -- parallel.c ------------------------------------------------------------------------------------------------------- */

/* Run `work` for `count` things on two cores if that can be, `piece` of them at a time: worker 0 from the first piece on, worker 1
 * from the last one backwards. A worker whose work says false takes no more. A helper that is asleep is woken up only if `wake`.
 * Without one, and again in a child that is forked meanwhile, worker 0 does all at once. */
void fl_work_on_two(bool (*work)(void *context, int worker, size_t first, size_t stop), void *context, size_t count, size_t piece,
                    bool wake);
/* There is going to be work soon: have the helper awake. It looks for some for a moment, then it sleeps again. */
void fl_call_helper(void);
/* Have children that are forked begin without a helper. To be called before there are threads that could fork meanwhile; without
 * it, that is done when the helper is first wanted. Tells whether it was possible. */
bool fl_watch_forks(void);

#endif
