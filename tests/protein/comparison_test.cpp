// Comparisons of structures, beside golden values and what TMscore of tm-align 20190822 prints.
#include "colossal/protein/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "colossal/protein/sequence_alignment.h"
#include "colossal/protein/superposition.h"
#include "protein/golden.h"
#include "support/thrown_message.h"

namespace colossal::protein::comparison_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

/// Returns the first 5 points of G21, predicted or true.
std::vector<Point> golden_points(bool is_true) {
  std::vector<Point> points;
  for (double i = 0; i < 5; ++i)
    points.push_back(is_true ? Point{3.8 * i, 3 * std::sin(1.7 * i), 3 * std::cos(1.7 * i)}
                             : Point{3.1 * i, 4 * std::sin(1.5 * i), 2.5 * std::cos(1.9 * i)});
  return points;
}

/// Returns a helix of CA atoms with noise, the same for the same seed.
std::vector<Point> noisy_helix(size_t count, double noise, unsigned seed) {
  std::mt19937 random(seed);
  const auto draw = [&] { return noise * (static_cast<double>(random()) / 0x1p31 - 1); };
  std::vector<Point> points;
  for (size_t i = 0; i < count; ++i) {
    const double turn = 100 * 3.14159265358979 / 180 * static_cast<double>(i);
    points.push_back(
        {2.3 * std::cos(turn) + draw(), 2.3 * std::sin(turn) + draw(), 1.5 * static_cast<double>(i) + draw()});
  }
  return points;
}

CaTrace trace_of(const std::string& letters, const std::vector<Point>& points) {
  return {letters, {points.begin(), points.end()}};
}

const Frame kMotion = frame_of_axes({1, 2, -.5}, {.3, -1, 2}, {10, -20, 5});

std::vector<Point> moved(const std::vector<Point>& points) {
  std::vector<Point> all;
  for (const Point& point : points) all.push_back(kMotion.apply(point));
  return all;
}

TEST(Superposition, RmsdEqualsG31) {
  EXPECT_NEAR(superpose(golden_points(false), golden_points(true)).rmsd, 1.689447600482, 5e-13);
  EXPECT_NEAR(superpose(moved(golden_points(false)), golden_points(true)).rmsd, 1.689447600482, 5e-13);
}

TEST(Superposition, FindsARigidMotion) {
  const std::vector<Point> points = golden_points(true);
  const Superposition found = superpose(points, moved(points));
  EXPECT_LT(found.rmsd, 1e-13);
  golden::expect_near(found.transform.apply({1, 2, 3}), kMotion.apply({1, 2, 3}), 1e-12);
}

TEST(Superposition, DoesNotReflect) {
  std::vector<Point> mirrored = golden_points(true);
  for (Point& point : mirrored) point.x = -point.x;
  EXPECT_GT(superpose(mirrored, golden_points(true)).rmsd, .5);
  const Frame found = superpose(mirrored, golden_points(true)).transform;
  EXPECT_NEAR(dot(cross(found.rows[0], found.rows[1]), found.rows[2]), 1, 1e-12);
}

TEST(Superposition, TakesFewPoints) {
  const std::vector<Point> one{{1, 2, 3}}, other{{4, 5, 6}}, line{{0, 0, 0}, {1, 0, 0}}, up{{0, 0, 1}, {0, 0, 2}};
  EXPECT_LT(superpose(one, other).rmsd, 1e-13);
  EXPECT_LT(superpose(line, up).rmsd, 1e-13);
  EXPECT_THAT(test::thrown_message([&] { superpose(one, line); }), HasSubstr("got 1 and 2"));
}

TEST(Lddt, EqualsG23) {
  const std::vector<Point> points = golden_points(false);
  const Lddt found = lddt(std::vector<std::optional<Point>>(points.begin(), points.end()), golden_points(true));
  const double wanted[] = {2. / 3, 11. / 16, 1. / 2, 5. / 8, 5. / 12};
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(found.residues[i], wanted[i], 1e-15);
  EXPECT_NEAR(found.all, 7. / 12, 1e-15);
}

TEST(Lddt, CountsMissingPointsAsWrong) {
  const std::vector<Point> truth{{0, 0, 0}, {3, 0, 0}, {6, 0, 0}};
  const Lddt found = lddt(std::vector<std::optional<Point>>{truth[0], truth[1], std::nullopt}, truth);
  EXPECT_THAT(found.residues, ElementsAre(.5, .5, 0));
  EXPECT_NEAR(found.all, 1. / 3, 1e-15);
}

TEST(TmScore, EqualStructuresScoreOne) {
  const std::vector<Point> points = noisy_helix(40, .5, 1);
  const TmScores found = tm_scores(moved(points), points, 40);
  EXPECT_NEAR(found.tm, 1, 1e-12);
  EXPECT_EQ(found.gdt_ts, 1);
  EXPECT_NEAR(tm_scores(moved(points), points, 80).tm, .5, 1e-12) << "residues of the reference that are missing";
}

TEST(TmScore, D0HasTheFloorOfTmScore) {
  EXPECT_EQ(tm_d0(5), .5);
  EXPECT_EQ(tm_d0(21), .5);
  EXPECT_NEAR(tm_d0(191), 1.24 * std::cbrt(176) - 1.8, 1e-15);
}

// TMscore of tm-align 20190822 prints these values for the same points. Without the rounds of its search: .3696, .4625.
TEST(TmScore, SearchFindsWhatTmScoreFinds) {
  std::vector<Point> points, truth;
  for (double i = 0; i < 60; ++i) {
    truth.push_back({6 * std::sin(.41 * i), 5 * std::cos(.53 * i), 1.1 * i});
    const Point noise{std::cos(1.3 * i + .02 * i * i), std::sin(2.1 * i), std::cos(.9 * i + .05 * i * i)};
    points.push_back(truth.back() + 3 * noise);
  }
  const TmScores found = tm_scores(points, truth, 60);
  EXPECT_NEAR(found.tm, .3822, 2e-4);
  EXPECT_NEAR(found.gdt_ts, .4833, 1e-3);
}

// Two domains that moved against each other: one superposition of all finds neither.
TEST(TmScore, SearchFindsADomain) {
  std::vector<Point> truth = noisy_helix(60, .3, 2), points = truth;
  for (size_t i = 40; i < 60; ++i) points[i] = kMotion.apply(points[i]);
  const TmScores found = tm_scores(points, truth, 60);
  const Frame all = superpose(points, truth).transform;
  double sum = 0;
  for (size_t i = 0; i < 60; ++i) {
    const double d = distance(all.apply(points[i]), truth[i]) / tm_d0(60);
    sum += 1 / (1 + d * d);
  }
  EXPECT_GT(found.tm, 2. / 3);
  EXPECT_LT(sum / 60, .5);
  EXPECT_GE(found.gdt_ts, 2. / 3);
}

TEST(SequenceAlignment, PairsEqualSequences) {
  EXPECT_THAT(align_sequences("MKT", "MKT"), ElementsAre(Pair(0, 0), Pair(1, 1), Pair(2, 2)));
  EXPECT_TRUE(align_sequences("", "MKT").empty());
  EXPECT_TRUE(align_sequences("MKT", "").empty());
}

TEST(SequenceAlignment, FindsGapsAndDifferences) {
  EXPECT_THAT(align_sequences("MKTAYIAKQRQISF", "MKTARQISF"),
              ElementsAre(Pair(0, 0), Pair(1, 1), Pair(2, 2), Pair(3, 3), Pair(9, 4), Pair(10, 5), Pair(11, 6),
                          Pair(12, 7), Pair(13, 8)));
  EXPECT_THAT(align_sequences("AYIAKW", "MMMAYLAKW").front(), Pair(0, 3));
  EXPECT_EQ(align_sequences("AYIAKW", "MMMAYLAKW").size(), 6u) << "another letter stands in one column";
  EXPECT_EQ(align_sequences("AYXAKW", "AYIAKW").size(), 6u);
  EXPECT_EQ(align_sequences("MKTGGGGGGGGGGARQ", "MKTSSSSSSSSSSARQ").size(), 16u)
      << "a long stretch of other letters stays";
  EXPECT_THAT(align_sequences("MKAIAK", "MKTAYIAK"),
              ElementsAre(Pair(0, 0), Pair(1, 1), Pair(2, 3), Pair(3, 5), Pair(4, 6), Pair(5, 7)));
}

TEST(SequenceAlignment, EndGapsCostNoOpening) { EXPECT_THAT(align_sequences("WWK", "KAA"), ElementsAre(Pair(2, 0))); }

TEST(Comparison, AlignsSequencesFirst) {
  const std::vector<Point> truth = noisy_helix(30, .3, 3);
  const std::string letters = "MKTAYIAKQRQISFVKSHFSRQLEERLGLI";
  CaTrace reference = trace_of(letters, truth);
  CaTrace shorter = trace_of(letters.substr(4), moved({truth.begin() + 4, truth.end()}));
  const Comparison found = compare(shorter, reference);
  EXPECT_EQ(found.residues, 26);
  EXPECT_LT(found.rmsd, 1e-12);
  EXPECT_NEAR(found.tm, 26. / 30, 1e-12);
  EXPECT_NEAR(found.gdt_ts, 26. / 30, 1e-12);
  EXPECT_LT(found.lddt_ca, 1);
  reference.atoms[7] = std::nullopt;
  EXPECT_EQ(compare(shorter, reference).residues, 25);
  EXPECT_NEAR(compare(shorter, reference).tm, 25. / 29, 1e-12) << "a residue without a place is none of the reference";
}

TEST(Comparison, RefusesTooFewResiduesAndPlacesThatAreNotFinite) {
  const std::vector<Point> truth = noisy_helix(4, .3, 4);
  EXPECT_THAT(test::thrown_message([&] { compare(trace_of("WWWW", truth), {"AAAA", {{}, {}, truth[2], truth[3]}}); }),
              HasSubstr("[compare] two structures must have at least 3 aligned residues with a CA in both: got 2"));
  std::vector<Point> broken = truth;
  broken[1].x = NAN;
  EXPECT_THAT(test::thrown_message([&] { compare(trace_of("AAAA", broken), trace_of("AAAA", truth)); }),
              HasSubstr("positions must be finite"));
}

TEST(Comparison, TracesTheChainsOfAStructure) {
  Structure structure{"x", {{"A", {{0, {{kAtomCa, {1, 2, 3}, 0}}}, {kUnknownType, {}}}}, {"B", {{1, {}}}}}};
  const CaTrace trace = ca_trace(structure);
  EXPECT_EQ(trace.letters, "AXR");
  EXPECT_EQ(*trace.atoms[0], (Point{1, 2, 3}));
  EXPECT_FALSE(trace.atoms[1]);
  EXPECT_EQ(ca_trace(structure.chains[1]).letters, "R");
}

}  // namespace
}  // namespace colossal::protein::comparison_test
