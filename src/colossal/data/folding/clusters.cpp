#include "colossal/data/folding/clusters.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/protein/residues.h"

namespace colossal::data {
namespace {

typedef uint8_t LetterLanes __attribute__((vector_size(16)));
constexpr int64_t kLaneBytes = sizeof(LetterLanes);
constexpr int64_t kMostAdded = 255;                    // comparisons that a lane of bytes can count
constexpr uint8_t kNoCenter = 0xFE, kNoMember = 0xFF;  // letters that are equal to none

/// Rows in vectors. Letters that are equal to nothing, and what fills the last vector, are `nothing`.
class PackedRows {
 public:
  PackedRows(const LetterRows& letters, std::span<const int64_t> rows, uint8_t nothing)
      : vectors_((letters.columns + kLaneBytes - 1) / kLaneBytes), bytes_(rows.size() * stride(), nothing) {
    for (size_t i = 0; i < rows.size(); ++i)
      std::transform(letters.row(rows[i]), letters.row(rows[i]) + letters.columns, bytes_.data() + i * stride(),
                     [&](uint8_t type) { return type < protein::kGapType ? type : nothing; });
  }
  int64_t vectors() const { return vectors_; }
  int64_t rows() const { return vectors_ == 0 ? 0 : static_cast<int64_t>(bytes_.size() / stride()); }
  const uint8_t* row(int64_t index) const { return bytes_.data() + static_cast<size_t>(index) * stride(); }

 private:
  size_t stride() const { return static_cast<size_t>(vectors_ * kLaneBytes); }
  int64_t vectors_;
  std::vector<uint8_t> bytes_;
};

int64_t sum_of_lanes(const LetterLanes& lanes) {
  std::array<uint64_t, 2> halves;
  std::memcpy(halves.data(), &lanes, sizeof lanes);
  constexpr uint64_t kEven = 0x00FF00FF00FF00FFull, kOnes = 0x0001000100010001ull;
  int64_t sum = 0;
  for (const uint64_t half : halves)
    sum += static_cast<int64_t>((((half & kEven) + ((half >> 8) & kEven)) * kOnes) >> 48);
  return sum;
}

int64_t equal_letters(const uint8_t* a, const uint8_t* b, int64_t vectors) {
  int64_t sum = 0;
  for (int64_t begin = 0; begin < vectors; begin += kMostAdded) {
    const int64_t end = std::min(vectors, begin + kMostAdded);
    LetterLanes counts{};
    for (int64_t i = begin; i < end; ++i) {
      LetterLanes x, y;
      std::memcpy(&x, a + i * kLaneBytes, sizeof x);
      std::memcpy(&y, b + i * kLaneBytes, sizeof y);
      counts -= static_cast<LetterLanes>(x == y);  // equal lanes are -1
    }
    sum += sum_of_lanes(counts);
  }
  return sum;
}

std::vector<int64_t> all_rows(const LetterRows& letters) {
  std::vector<int64_t> rows(static_cast<size_t>(letters.rows()));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
  return rows;
}

}  // namespace

LetterRows LetterRows::taken(std::span<const int64_t> indices) const {
  LetterRows result{.columns = columns};
  result.types.reserve(indices.size() * static_cast<size_t>(columns));
  for (const int64_t index : indices) result.types.insert(result.types.end(), row(index), row(index) + columns);
  return result;
}

LetterRows letter_rows(const protein::Alignment& alignment) {
  std::array<uint8_t, 256> types{};
  for (size_t c = 0; c < types.size(); ++c)
    types[c] = static_cast<uint8_t>(protein::alignment_type_of_letter(static_cast<char>(c)));
  LetterRows letters{.columns = alignment.columns()};
  letters.types.reserve(alignment.rows.size() * static_cast<size_t>(letters.columns));
  for (const std::string& row : alignment.rows)
    for (const char c : row) letters.types.push_back(types[static_cast<unsigned char>(c)]);
  return letters;
}

std::vector<int32_t> nearest_clusters(const LetterRows& centers, const LetterRows& letters,
                                      std::span<const int64_t> rows) {
  require(centers.rows() > 0 && centers.columns == letters.columns, "features",
          "rows need a center to be nearest to, with as many columns: got ", centers.rows(), " centers of ",
          centers.columns, " columns, and rows of ", letters.columns);
  const PackedRows centers_packed(centers, all_rows(centers), kNoCenter), others(letters, rows, kNoMember);
  std::vector<int32_t> nearest(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    int64_t best = -1;
    for (int64_t center = 0; center < centers_packed.rows(); ++center) {
      const int64_t equal =
          equal_letters(others.row(static_cast<int64_t>(i)), centers_packed.row(center), others.vectors());
      if (equal <= best) continue;
      best = equal;
      nearest[i] = static_cast<int32_t>(center);
    }
  }
  return nearest;
}

ClusterSums sum_clusters(const LetterRows& center_letters, const LetterRows& letters,
                         const protein::Alignment& alignment, const ClusteredRows& rows, const ColumnRange& range) {
  const auto columns = static_cast<size_t>(range.size), centers = rows.centers.size();
  ClusterSums sums;
  sums.members.resize(centers);
  sums.letters.resize(centers * columns * kLetterTypes);
  sums.deletions.resize(centers * columns);
  const auto add = [&](size_t center, const uint8_t* types, int64_t row) {
    ++sums.members[center];
    for (size_t j = 0; j < columns; ++j) {
      const int64_t column = range.first + static_cast<int64_t>(j);
      ++sums.letters[(center * columns + j) * kLetterTypes + types[column]];
      sums.deletions[center * columns + j] += alignment.deletion(row, column);
    }
  };
  for (size_t center = 0; center < centers; ++center)
    add(center, center_letters.row(static_cast<int64_t>(center)), rows.centers[center]);
  for (size_t i = 0; i < rows.others.size(); ++i)
    add(static_cast<size_t>(rows.nearest[i]), letters.row(rows.others[i]), rows.others[i]);
  return sums;
}

}  // namespace colossal::data
