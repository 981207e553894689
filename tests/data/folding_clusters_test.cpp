// Clusters of alignments, and what a pass draws from their rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "colossal/base/seed.h"
#include "colossal/data/folding/alignment_draws.h"
#include "colossal/data/folding/clusters.h"
#include "colossal/protein/residues.h"
#include "support/thrown_message.h"

namespace colossal::data::folding_clusters_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

/// Returns an alignment without deletions.
protein::Alignment alignment_of(const std::vector<std::string>& rows) {
  protein::Alignment alignment{.rows = rows};
  alignment.deletions.resize(rows.size() * rows[0].size());
  return alignment;
}

/// Returns the rows of golden value G34: row 1 has a deletion before column 5, row 2 before column 4.
protein::Alignment golden_alignment() {
  protein::Alignment alignment = alignment_of({"MKTAYIA", "MKSAY-A", "M-TAYVA", "LKTGWLA", "MKTAYV-"});
  alignment.deletions[1 * 7 + 5] = 1;
  alignment.deletions[2 * 7 + 4] = 1;
  return alignment;
}

/// Returns rows of letters that follow from `seed`, gaps and unknown ones among them.
protein::Alignment drawn_alignment(size_t rows, size_t columns, uint64_t seed) {
  std::vector<std::string> texts(rows, std::string(columns, 'A'));
  for (auto& text : texts)
    for (char& c : text) {
      seed = splitmix64(seed);
      c = "ACDEKLXB-"[seed % 9];
    }
  return alignment_of(texts);
}

TEST(FoldingClusters, GiveGoldenValue34) {
  const protein::Alignment alignment = golden_alignment();
  const LetterRows letters = letter_rows(alignment);
  const std::vector<int64_t> centers{0, 1}, others{2, 3, 4};
  const LetterRows center_letters = letters.taken(centers);
  const std::vector<int32_t> nearest = nearest_clusters(center_letters, letters, others);
  EXPECT_THAT(nearest, ElementsAre(0, 0, 0)) << "all are nearer to the query";
  const ClusterSums sums = sum_clusters(center_letters, letters, alignment, {centers, others, nearest}, {0, 7});
  EXPECT_THAT(sums.members, ElementsAre(4, 1));
  double sum = 0;
  for (size_t i = 0; i < sums.letters.size(); ++i)
    sum += double(sums.letters[i]) / sums.members[i / (7 * kLetterTypes)] * std::sin(double(i + 1));
  EXPECT_NEAR(sum, .3096605523277, 1e-13);
  EXPECT_THAT(sums.deletions, ElementsAre(0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0));
}

TEST(FoldingClusters, FindsTheNearestCenterAsOneByOne) {
  // More columns than one sum of bytes holds, and no multiple of a vector.
  for (const size_t columns : {1, 15, 16, 37, 4100}) {
    const LetterRows letters = letter_rows(drawn_alignment(23, columns, columns));
    LetterRows centers = letters.taken({0, 3, 7, 4, 9});
    for (size_t i = 0; i < centers.types.size(); i += 3) centers.types[i] = protein::kMaskType;
    std::vector<int64_t> rows(14);
    std::iota(rows.begin(), rows.end(), 9);
    const std::vector<int32_t> nearest = nearest_clusters(centers, letters, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::vector<int64_t> equal(5);
      for (int64_t center = 0; center < 5; ++center)
        for (size_t column = 0; column < columns; ++column) {
          const uint8_t a = centers.row(center)[column], b = letters.row(rows[i])[column];
          equal[size_t(center)] += a == b && a < protein::kGapType ? 1 : 0;
        }
      EXPECT_EQ(nearest[i], std::max_element(equal.begin(), equal.end()) - equal.begin()) << columns << ", row " << i;
    }
  }
}

TEST(FoldingClusters, NeedsACenter) {
  const LetterRows letters = letter_rows(golden_alignment());
  const std::vector<int64_t> rows{1};
  EXPECT_THAT(test::thrown_message([&] { nearest_clusters(letters.taken({}), letters, rows); }),
              HasSubstr("rows need a center"));
}

TEST(AlignmentDraws, OrdersAllRowsAfterTheQuery) {
  std::vector<int64_t> all(40);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int64_t> first = drawn_rows(40, {}, pass_seed(3, "x", 0));
  EXPECT_EQ(first[0], 0);
  EXPECT_THAT(first, UnorderedElementsAreArray(all));
  EXPECT_EQ(first, drawn_rows(40, {}, pass_seed(3, "x", 0)));
  for (const uint64_t other : {pass_seed(3, "x", 1), pass_seed(3, "y", 0), pass_seed(4, "x", 0)})
    EXPECT_NE(first, drawn_rows(40, {}, other));
}

TEST(AlignmentDraws, DeletesBlocksOfRows) {
  int64_t least = 1000, most = 0;
  for (int64_t pass = 0; pass < 50; ++pass) {
    std::vector<int64_t> rows = drawn_rows(1000, {.blocks = 5, .share = .3}, pass_seed(3, "x", pass));
    EXPECT_EQ(rows[0], 0);
    least = std::min(least, std::ssize(rows));
    most = std::max(most, std::ssize(rows));
    std::sort(rows.begin(), rows.end());
    int64_t gaps = 0;
    for (size_t i = 1; i < rows.size(); ++i) gaps += rows[i] != rows[i - 1] + 1 ? 1 : 0;
    EXPECT_LE(gaps, 5);
  }
  EXPECT_LT(least, 150);
  EXPECT_GT(most, 300);
  EXPECT_LT(most, 701);
  EXPECT_EQ(drawn_rows(3, {.blocks = 5, .share = .3}, 1).size(), 3u) << "a block of a few rows has none";
}

TEST(AlignmentDraws, MasksTheSharesOfAlphaFold) {
  // Only rows of A are masked. A letter C is then from the column, or one of the 20 types.
  protein::Alignment alignment = alignment_of(std::vector<std::string>(200, std::string(100, 'A')));
  for (size_t row = 100; row < 200; ++row) alignment.rows[row] = std::string(100, 'C');
  const LetterRows letters = letter_rows(alignment);
  std::vector<int64_t> rows(100);
  std::iota(rows.begin(), rows.end(), 0);
  const MaskedRows masked = masked_rows(letters, rows, letter_counts(letters), .15, pass_seed(3, "x", 0));
  std::vector<double> counts(kLetterTypes);
  double places = 0;
  for (size_t i = 0; i < masked.is_masked.size(); ++i) {
    const uint8_t type = masked.letters.types[i];
    EXPECT_TRUE(masked.is_masked[i] == 1 || type == 0);
    places += masked.is_masked[i];
    counts[type] += masked.is_masked[i];
  }
  // Three standard deviations of 10,000 places, and of 1,500.
  EXPECT_NEAR(places / 10000, .15, .011);
  EXPECT_NEAR(counts[protein::kMaskType] / places, .7, .036);
  EXPECT_NEAR(counts[0] / places, .1 + .05 + .005, .029) << "kept, from the column, and one of 20";
  EXPECT_NEAR(counts[4] / places, .05 + .005, .018) << "from the column, and one of 20";
  EXPECT_NEAR((places - counts[protein::kMaskType] - counts[0] - counts[4]) / places, .09, .023);
  EXPECT_EQ(counts[protein::kUnknownType] + counts[protein::kGapType], 0);
}

TEST(AlignmentDraws, MasksARowAlikeInAnyChoiceOfRows) {
  const LetterRows letters = letter_rows(drawn_alignment(20, 50, 5));
  const std::vector<int32_t> counts = letter_counts(letters);
  const std::vector<int64_t> many{0, 4, 7, 2}, few{7};
  const MaskedRows all = masked_rows(letters, many, counts, .5, 9), one = masked_rows(letters, few, counts, .5, 9);
  EXPECT_TRUE(std::equal(one.letters.types.begin(), one.letters.types.end(), all.letters.row(2)));
  EXPECT_EQ(masked_rows(letters, many, counts, 0, 9).letters.types, letters.taken(many).types);
}

}  // namespace
}  // namespace colossal::data::folding_clusters_test
