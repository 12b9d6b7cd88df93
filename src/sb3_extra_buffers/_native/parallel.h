/* Some work shared by two threads. */
#ifndef FT_PARALLEL_H
#define FT_PARALLEL_H

#include <stdbool.h>
#include <stddef.h>

/* Run `work` for `count` things on two cores if that can be, `piece` of them at a time: worker 0 from the first piece on, worker 1
 * from the last one backwards. A worker whose work returns false takes no more. A helper that is asleep is woken up only if `wake`.
 * Without one, and again in a child that is forked meanwhile, worker 0 does all at once. */
void ft_work_on_two(bool (*work)(void *context, int worker, size_t first, size_t stop), void *context, size_t count, size_t piece,
                    bool wake);
/* Have children that are forked begin without a helper. To be called before there are threads that could fork meanwhile; without
 * it, that is done when the helper is first wanted. Returns whether it was possible. */
bool ft_watch_forks(void);

#endif
