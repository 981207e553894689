// The words that kernel bodies are written in, from the one of two headers that the including unit is for. A body says
// what the calling thread does to a range of rows or elements; on a CPU that is a thread with its vectors (simd.h), on
// a GPU a block of threads (simt.h, in units that define COLOSSAL_SIMT), so that one body serves both:
//
//   template <class T>
//   COLOSSAL_DEVICE void half(const T* x, T* y, int64_t n) {
//     using W = WideOf<T>;
//     for_vectors<W>(n, [&](int64_t i, auto part) { store(y + i, load(x + i, part) * W(0.5), part); });
//   }
//
// Vec<W>                         kLanes<W> neighbouring elements, with + - * / < > and select(where, a, b)
// for_vectors<W>(n, body)        body(i, part) on all vectors of [0, n); part is Whole, or the Tail at the end
// for_chains<W, N>(n, body)      the same as body(i, chain, part): chain < N says which of N results to add to, so that
//                                additions do not wait for one another
// for_vectors_of_rows<W>(begin, end, n, of_row)   of_row(row) makes the body of a row; short rows share a block
// load, store, load_words        in the type computed in, of any element type; past a tail zeros are read
// only(v, part, filler)          v with lanes past the tail replaced
// sum_of, max_of                 over all lanes - of the whole block, where there is one: its threads meet there
// once(body), together()         by one thread of the block; all threads are done with what stands before
#pragma once
#if defined(COLOSSAL_SIMT)
#include "colossal/ops/simt.h"
#else
#include "colossal/ops/simd.h"
#endif
