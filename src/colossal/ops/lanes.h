// Vocabulary of the kernel bodies. It comes from one of two headers, depending on the including translation unit. A
// body says what the calling thread does to a range of rows or elements. On a CPU (simd.h) that is one thread with its
// vector registers. On a GPU (ops/device/simt.h, in units that define COLOSSAL_SIMT) a block of threads acts as the
// calling thread. One body serves both:
//
//   template <class T>
//   COLOSSAL_DEVICE void half(const T* x, T* y, int64_t n) {
//     using W = WideOf<T>;
//     for_vectors<W>(n, [&](int64_t i, auto part) { store(y + i, load(x + i, part) * W(0.5), part); });
//   }
//
// Vec<W>                         kLanes<W> neighbouring elements, with + - * / < > and select(where, a, b)
// for_vectors<W>(n, body)        calls body(i, part) for all vectors of [0, n); part is Whole, or the Tail at the end
// for_chains<W, N>(n, body)      does the same with body(i, chain, part). chain < N says which of N sums to add to, so
//                                that additions do not wait for one another
// for_vectors_of_rows<W>(begin, end, n, of_row)   of_row(row) returns the body for a row; short rows share a block
// load, store, load_words        convert any element type from and to the computing type; a load past a tail gives 0
// only(v, part, filler)          returns v with lanes past the tail replaced by `filler`
// sum_of, max_of                 reduce all lanes, on a GPU of the whole block; they synchronise its threads
// once(body)                     runs body on one thread of the block
// together()                     waits until all threads of the block have finished the statements before it
#pragma once
#if defined(COLOSSAL_SIMT)
#include "colossal/ops/device/simt.h"
#else
#include "colossal/ops/simd.h"
#endif
