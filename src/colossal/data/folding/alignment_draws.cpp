#include "colossal/data/folding/alignment_draws.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "colossal/base/seed.h"
#include "colossal/protein/residues.h"

namespace colossal::data {
namespace {

constexpr double kMaskShare = .7, kSameShare = .1, kProfileShare = .1;  // the rest is uniform

/// Returns a whole number below `count`.
int64_t drawn_below(int64_t count, uint64_t seed) {
  return std::min(count - 1, static_cast<int64_t>(uniform_of_seed(seed) * static_cast<double>(count)));
}

/// Sorts by a key that each number draws for itself.
void shuffle_numbers(std::vector<int64_t>& numbers, uint64_t seed) {
  std::vector<std::pair<uint64_t, int64_t>> keyed;
  keyed.reserve(numbers.size());
  for (const int64_t number : numbers) keyed.emplace_back(derive_seed(seed, static_cast<uint64_t>(number)), number);
  std::sort(keyed.begin(), keyed.end());
  std::transform(keyed.begin(), keyed.end(), numbers.begin(), [](const auto& pair) { return pair.second; });
}

std::vector<bool> deleted_rows(int64_t rows, const BlockDeletion& deletion, uint64_t seed) {
  std::vector<bool> is_deleted(static_cast<size_t>(rows));
  const auto size = static_cast<int64_t>(std::floor(static_cast<double>(rows) * deletion.share));
  for (int64_t block = 0; block < deletion.blocks; ++block) {
    const int64_t first = drawn_below(rows, derive_seed(seed, static_cast<uint64_t>(block)));
    const int64_t end = std::min(rows, first + size);
    for (int64_t row = first; row < end; ++row) is_deleted[static_cast<size_t>(row)] = true;
  }
  return is_deleted;
}

/// Returns a letter by its share of a column.
uint8_t letter_of_column(const int32_t* counts, double uniform) {
  const int64_t all = std::accumulate(counts, counts + kLetterTypes, int64_t{0});
  auto left = static_cast<int64_t>(uniform * static_cast<double>(all));
  uint8_t type = 0;
  while (type + 1 < kLetterTypes && left >= counts[type]) left -= counts[type++];
  return type;
}

uint8_t replacement(uint8_t letter, const int32_t* counts, uint64_t seed) {
  double kind = uniform_of_seed(derive_seed(seed, "kind"));
  if (kind < kMaskShare) return protein::kMaskType;
  if ((kind -= kMaskShare) < kSameShare) return letter;
  const uint64_t choice = derive_seed(seed, "letter");
  if (kind - kSameShare < kProfileShare) return letter_of_column(counts, uniform_of_seed(choice));
  return static_cast<uint8_t>(drawn_below(protein::kTypes, choice));
}

}  // namespace

uint64_t pass_seed(uint64_t seed, std::string_view chain, int64_t pass) {
  return derive_seed(derive_seed(derive_seed(seed, "features"), chain), static_cast<uint64_t>(pass));
}

std::vector<int64_t> drawn_rows(int64_t rows, const BlockDeletion& deletion, uint64_t seed) {
  const std::vector<bool> is_deleted = deleted_rows(rows, deletion, derive_seed(seed, "blocks"));
  std::vector<int64_t> others;
  for (int64_t row = 1; row < rows; ++row)
    if (!is_deleted[static_cast<size_t>(row)]) others.push_back(row);
  shuffle_numbers(others, derive_seed(seed, "rows"));
  others.insert(others.begin(), 0);
  return others;
}

std::vector<int64_t> drawn_order(int64_t count, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  shuffle_numbers(order, seed);
  return order;
}

std::vector<int32_t> letter_counts(const LetterRows& letters) {
  std::vector<int32_t> counts(static_cast<size_t>(letters.columns * kLetterTypes));
  for (int64_t row = 0; row < letters.rows(); ++row) {
    const uint8_t* types = letters.row(row);
    for (int64_t column = 0; column < letters.columns; ++column)
      ++counts[static_cast<size_t>(column * kLetterTypes + types[column])];
  }
  return counts;
}

MaskedRows masked_rows(const LetterRows& letters, std::span<const int64_t> rows, const std::vector<int32_t>& counts,
                       double share, uint64_t seed) {
  MaskedRows masked{.letters = letters.taken(rows)};
  masked.is_masked.resize(masked.letters.types.size());
  const uint64_t places = derive_seed(seed, "places");
  for (size_t i = 0; i < rows.size(); ++i) {
    uint8_t* types = masked.letters.row(static_cast<int64_t>(i));
    const uint64_t row_seed = derive_seed(places, static_cast<uint64_t>(rows[i]));
    for (int64_t column = 0; column < letters.columns; ++column) {
      const uint64_t place = derive_seed(row_seed, static_cast<uint64_t>(column));
      if (uniform_of_seed(place) >= share) continue;
      masked.is_masked[i * static_cast<size_t>(letters.columns) + static_cast<size_t>(column)] = 1;
      types[column] = replacement(types[column], counts.data() + column * kLetterTypes, place);
    }
  }
  return masked;
}

}  // namespace colossal::data
