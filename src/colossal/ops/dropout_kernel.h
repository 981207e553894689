// Body of dropout for devices; each thread draws the words of its elements. random.cpp has the CPU version.
#pragma once
#include "colossal/ops/lanes.h"

namespace colossal::ops {
namespace {

template <class T>
COLOSSAL_DEVICE void drop_rows(const DroppedRows<T>& a, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  for_vectors_of_rows<W>(begin, end, a.columns, [&](int64_t row) {
    // Skips the division if it can, because a division takes as long as all other work.
    const int64_t behind = a.run == a.stride ? row : row / a.run * a.stride + row % a.run;
    const int64_t logical_row = a.first_row + behind;
    const auto first = static_cast<uint64_t>(logical_row) * static_cast<uint64_t>(a.logical_columns) +
                       static_cast<uint64_t>(a.first_column);
    const RandomWords words{true, nullptr, a.seed, first};
    return [=, x = a.x + row * a.columns, y = a.y + row * a.columns, threshold = a.threshold, scale = a.scale](
               int64_t i, auto part) {
      const auto drops = load_words(words, i, part) < Words(threshold);
      store(y + i, select(drops, Vec<W>(0), load(x + i, part) * scale), part);
    };
  });
}

}  // namespace
}  // namespace colossal::ops
