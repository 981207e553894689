#include "colossal/data/folding/drawn_folds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>

#include "colossal/protein/residues.h"
#include "support/thrown_message.h"

namespace colossal::drawn_folds_test {
namespace {

using protein::Point;
enum Atom {
  N = protein::kAtomN,
  CA = protein::kAtomCa,
  C = protein::kAtomC,
  CB = protein::kAtomCb,
  O = protein::kAtomO
};

double degrees(double radians) { return radians * 180 / std::numbers::pi; }
double angle(const Point& a, const Point& b, const Point& c) {
  return degrees(std::acos(dot(a - b, c - b) / (norm(a - b) * norm(c - b))));
}
bool is_in(char letter, const std::string& letters) { return letters.find(letter) != std::string::npos; }

TEST(DrawnFolds, HaveLengthsAndAnglesOfBonds) {
  const data::DrawnFold fold = data::drawn_fold(3, {.residues = 40});
  ASSERT_EQ(fold.atoms.size(), 40u);
  for (size_t i = 0; i < fold.atoms.size(); ++i) {
    const auto& here = fold.atoms[i];
    EXPECT_NEAR(distance(here[N], here[CA]), 1.458, 1e-9);
    EXPECT_NEAR(distance(here[CA], here[C]), 1.525, 1e-9);
    EXPECT_NEAR(distance(here[C], here[O]), 1.231, 1e-9);
    EXPECT_NEAR(angle(here[N], here[CA], here[C]), 111, 1e-9);
    if (i + 1 == fold.atoms.size()) continue;
    const auto& next = fold.atoms[i + 1];
    EXPECT_NEAR(distance(here[C], next[N]), 1.329, 1e-9);
    EXPECT_NEAR(angle(here[CA], here[C], next[N]), 116.2, 1e-9);
    EXPECT_NEAR(angle(here[C], next[N], next[CA]), 121.7, 1e-9);
    EXPECT_NEAR(std::abs(degrees(torsion(here[CA], here[C], next[N], next[CA]))), 180, 1e-6);
    EXPECT_NEAR(distance(here[O], next[N]), 2.25, .03);  // across the double bond
  }
}

TEST(DrawnFolds, TurnAsTheirLettersSay) {
  int helices = 0, strands = 0, turns = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const data::DrawnFold fold = data::drawn_fold(seed, {.residues = 30});
    for (size_t i = 1; i + 1 < fold.atoms.size(); ++i) {
      const auto &before = fold.atoms[i - 1], &here = fold.atoms[i], &next = fold.atoms[i + 1];
      const double phi = degrees(torsion(before[C], here[N], here[CA], here[C])),
                   psi = degrees(torsion(here[N], here[CA], here[C], next[N]));
      const char letter = fold.sequence[i];
      const bool helix = is_in(letter, "AELKMQR"), strand = is_in(letter, "VIYFTWC");
      EXPECT_NEAR(phi, helix ? -57 : strand ? -119 : letter == 'N' ? 55 : letter == 'G' ? 60 : -70, 1e-6);
      EXPECT_NEAR(psi, helix ? -47 : strand ? 113 : letter == 'N' ? 40 : letter == 'G' ? 30 : -10, 1e-6);
      helices += helix, strands += strand, turns += letter == 'G';
    }
  }
  EXPECT_GT(helices, 40);
  EXPECT_GT(strands, 40);
  EXPECT_GT(turns, 8);
}

TEST(DrawnFolds, HaveTheChiralityOfNature) {
  const data::DrawnFold fold = data::drawn_fold(5, {.residues = 40});
  for (size_t i = 0; i < fold.atoms.size(); ++i) {
    const auto& atoms = fold.atoms[i];
    if (fold.sequence[i] == 'G') {
      EXPECT_EQ(atoms[CB], Point{});
      continue;
    }
    EXPECT_LT(distance(atoms[CB], protein::virtual_c_beta(atoms[N], atoms[CA], atoms[C])), .1);
    EXPECT_GT(dot(cross(atoms[N] - atoms[CA], atoms[C] - atoms[CA]), atoms[CB] - atoms[CA]), 1);
  }
}

TEST(DrawnFolds, FollowTheSeed) {
  const data::DrawnFold a = data::drawn_fold(7, {.residues = 20, .rows = 6}),
                        b = data::drawn_fold(7, {.residues = 20, .rows = 4}),
                        other = data::drawn_fold(8, {.residues = 20, .rows = 6});
  EXPECT_EQ(a.sequence, b.sequence);
  EXPECT_EQ(a.atoms, b.atoms);
  for (size_t row = 0; row < 4; ++row) EXPECT_EQ(a.alignment.rows[row], b.alignment.rows[row]);
  EXPECT_NE(a.sequence, other.sequence);
  EXPECT_EQ(a.alignment.deletions.size(), 6u * 20);
}

TEST(DrawnFolds, HaveRelativesOfTheSameKinds) {
  const data::DrawnFold fold = data::drawn_fold(11, {.residues = 30, .rows = 40});
  int same = 0, gaps = 0, all = 0, insertions = 0;
  for (int64_t row = 1; row < 40; ++row)
    for (int64_t i = 0; i < 30; ++i) {
      const char letter = fold.alignment.rows[row][i], query = fold.sequence[i];
      insertions += fold.alignment.deletion(row, i) > 0;
      ++all, gaps += letter == '-', same += letter == query;
      if (letter == '-') continue;
      for (const char* kind : {"AELKMQR", "VIYFTWC", "NGD"}) EXPECT_EQ(is_in(letter, kind), is_in(query, kind));
    }
  EXPECT_NEAR(gaps, .05 * all, .02 * all);
  EXPECT_NEAR(same, (.65 + .3 / 6.2) * all, .05 * all);
  EXPECT_GT(insertions, 5);
  EXPECT_EQ(test::thrown_message([] { data::drawn_fold(0, {.residues = 0}); }),
            "[data] a drawn fold needs a residue and a row: got 0 residues and 1 rows");
}

}  // namespace
}  // namespace colossal::drawn_folds_test
