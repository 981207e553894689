#include "colossal/base/heap.h"

#include <cstdlib>  // defines __GLIBC__
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace colossal {

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);                // large blocks come from the heap too, and so can be used again
  mallopt(M_TRIM_THRESHOLD, 2147483647);  // the heap's end is never given back in between
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

}  // namespace colossal
