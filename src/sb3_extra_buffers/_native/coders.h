/* What a record holds, whichever coder has made it: what decode.c needs of coders.c. */
#ifndef FT_CODERS_H
#define FT_CODERS_H

#include "chunk.h"

/* Memory of one thread. */
typedef struct ft_scratch {
    uint8_t *frame;  /* the frame that patches are applied to, and FT_WRITE_AHEAD */
    uint8_t *first;  /* what a codec made of a blob, or a base, and FT_WRITE_AHEAD */
    uint8_t *pixels;
    uint8_t *put;    /* the frame that was put in its place last */
    uint8_t *work;   /* of decoders of pictures */
    uint8_t *body;   /* what the group codec made of one, and FT_READ_AHEAD */
} ft_scratch;

/* A group, ready to be walked. */
typedef struct ft_group {
    const uint8_t *base;    /* the key frame, or the first frame itself */
    bool keyed;             /* which of them */
    const uint8_t *patches; /* NULL where they are patches of objects */
    size_t length;
    ft_objects objects;
    size_t first;           /* number of its first frame */
    size_t stop;            /* number of the first frame after it */
} ft_group;

ft_scratch ft_split_scratch(const ft_rows *rows, uint8_t *memory);
bool ft_knows_coder(int coder);
/* Open a record of `length` bytes, its header included: everything of `group` but `first` and `stop`. */
int ft_open_record(const ft_rows *rows, const uint8_t *record, size_t length, const ft_scratch *own, const ft_codecs *codecs,
                   ft_group *group);
/* Change a frame as the next patch of a group says, and go on to the one after it; returns whether the patch is sound. */
bool ft_apply_next(const ft_rows *rows, ft_group *group, uint8_t *frame);
/* Make the frame that groups begin with whose base is the record at `offset`; FT_WRITE_AHEAD after it are written. */
int ft_make_base(const ft_rows *rows, const uint8_t *key, size_t offset, uint8_t *frame);
/* Have the rest of a record, whose first line is in a cache, and the frame that it is on, come to the cache; then the objects that it
 * refers to. */
void ft_fetch_record(const ft_rows *rows, size_t offset, ft_asked *asked);
void ft_fetch_objects(const ft_rows *rows, size_t offset, ft_asked *asked);

#endif
