// Tables of residues, and the places of atoms that follow from them, beside golden values of AlphaFold's formulas.
#include "colossal/protein/residues.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "colossal/protein/stereochemistry.h"
#include "protein/golden.h"

namespace colossal::protein::residues_test {
namespace {

/// Returns the frames of all groups of a residue on the identity, with angles in the order pre-omega, phi, psi, chi.
std::vector<Frame> group_frames(int type, const std::vector<double>& angles) {
  const auto& defaults = residue_tables().default_frame[static_cast<size_t>(type)];
  std::vector<Frame> frames{defaults[0]};
  for (size_t group = 1; group < kRigidGroups; ++group) {
    const double angle = angles[group - 1];
    const Frame turned = defaults[group].after(Frame::turn(std::sin(angle), std::cos(angle)));
    frames.push_back(frames[group > 4 ? group - 1 : 0].after(turned));
  }
  return frames;
}

/// Returns the positions of the atom14 slots; zeros for empty ones.
std::vector<Point> place_atoms(int type, const std::vector<double>& angles) {
  const auto& tables = residue_tables();
  const std::vector<Frame> frames = group_frames(type, angles);
  std::vector<Point> positions(kAtom14);
  for (size_t slot = 0; slot < kAtom14; ++slot)
    if (const auto at = static_cast<size_t>(type); tables.atom14_exists[at][slot])
      positions[slot] =
          frames[static_cast<size_t>(tables.atom14_group[at][slot])].apply(tables.atom14_position[at][slot]);
  return positions;
}

const std::vector<int> kFour{type_of_letter('A'), type_of_letter('R'), type_of_letter('G'), type_of_letter('P')};

/// Returns the atoms of A R G P with angle k of residue i = .4 k + .3 i, each residue moved.
std::vector<std::vector<Point>> four_residues(const std::vector<Point>& moves) {
  std::vector<std::vector<Point>> all;
  for (size_t i = 0; i < kFour.size(); ++i) {
    std::vector<double> angles;
    for (size_t k = 0; k < 7; ++k) angles.push_back(.4 * static_cast<double>(k) + .3 * static_cast<double>(i));
    all.push_back(place_atoms(kFour[i], angles));
    for (size_t slot = 0; slot < kAtom14; ++slot)
      if (residue_tables().atom14_exists[static_cast<size_t>(kFour[i])][slot]) all[i][slot] = all[i][slot] + moves[i];
  }
  return all;
}

Point atom_of(const std::vector<Point>& residue, int type, const char* name) {
  const auto atom = static_cast<size_t>(atom37_of_name(name));
  return residue[static_cast<size_t>(residue_tables().atom37_to_atom14[static_cast<size_t>(type)][atom])];
}

TEST(Residues, NamesLettersAndTypesAgree) {
  EXPECT_EQ(type_of_letter('A'), 0);
  EXPECT_EQ(type_of_letter('v'), 19);
  EXPECT_EQ(type_of_letter('X'), kUnknownType);
  EXPECT_EQ(type_of_letter('B'), kUnknownType);
  EXPECT_EQ(type_of_letter('-'), kUnknownType);
  for (int type = 0; type < kTypes; ++type) {
    EXPECT_EQ(type_of_letter(letter_of_type(type)), type);
    EXPECT_EQ(type_of_name(name_of_type(type)), type);
    EXPECT_EQ(alignment_type_of_letter(letter_of_type(type)), type);
  }
  EXPECT_STREQ(name_of_type(kUnknownType), "UNK");
  EXPECT_EQ(type_of_name("MSE"), kUnknownType);
  for (int atom = 0; atom < kAtom37; ++atom) EXPECT_EQ(atom37_of_name(name_of_atom37(atom)), atom);
  EXPECT_EQ(atom37_of_name("H"), -1);
  EXPECT_EQ(element_of_atom37(atom37_of_name("SG")), 'S');
}

TEST(Residues, AlignmentsMapAmbiguousLetters) {
  EXPECT_EQ(alignment_type_of_letter('B'), type_of_letter('D'));
  EXPECT_EQ(alignment_type_of_letter('Z'), type_of_letter('E'));
  EXPECT_EQ(alignment_type_of_letter('U'), type_of_letter('C'));
  for (const char letter : {'J', 'O', 'X'}) EXPECT_EQ(alignment_type_of_letter(letter), kUnknownType);
  EXPECT_EQ(alignment_type_of_letter('-'), kGapType);
}

TEST(Residues, TablesHaveTheAtomsOfEachType) {
  const auto& tables = residue_tables();
  const int counts[] = {5, 11, 8, 8, 6, 9, 9, 4, 10, 8, 8, 9, 8, 11, 7, 6, 7, 14, 12, 7, 0};
  const int chis[] = {0, 4, 2, 2, 1, 3, 3, 0, 2, 2, 2, 4, 3, 2, 2, 1, 1, 2, 2, 1, 0};
  for (size_t type = 0; type < kTableTypes; ++type) {
    int in14 = 0, in37 = 0, angles = 0;
    for (size_t slot = 0; slot < kAtom14; ++slot) {
      in14 += tables.atom14_exists[type][slot] ? 1 : 0;
      if (!tables.atom14_exists[type][slot]) continue;
      const auto atom = static_cast<size_t>(tables.atom14_to_atom37[type][slot]);
      EXPECT_TRUE(tables.atom37_exists[type][atom]);
      EXPECT_EQ(tables.atom37_to_atom14[type][atom], static_cast<int64_t>(slot));
    }
    for (const bool exists : tables.atom37_exists[type]) in37 += exists ? 1 : 0;
    for (const bool exists : tables.chi_exists[type]) angles += exists ? 1 : 0;
    EXPECT_EQ(in14, counts[type]) << type;
    EXPECT_EQ(in37, counts[type]) << type;
    EXPECT_EQ(angles, chis[type]) << type;
  }
  EXPECT_EQ(tables.default_frame[kUnknownType][0].rows[0], Point{}) << "X has no frames";
  EXPECT_EQ(tables.default_frame[0][4].rows[0], Point{}) << "alanine has no chi1";
}

TEST(Residues, TablesHaveBothNamingsOfSymmetricResidues) {
  const auto& tables = residue_tables();
  int ambiguous = 0, symmetric = 0;
  for (size_t type = 0; type < kTableTypes; ++type) {
    for (size_t slot = 0; slot < kAtom14; ++slot) {
      const auto other = static_cast<size_t>(tables.atom14_renamed[type][slot]);
      EXPECT_EQ(tables.atom14_renamed[type][other], static_cast<int64_t>(slot));
      EXPECT_EQ(tables.atom14_is_ambiguous[type][slot], other != slot);
      ambiguous += other != slot ? 1 : 0;
    }
    for (const bool is_symmetric : tables.chi_is_symmetric[type]) symmetric += is_symmetric ? 1 : 0;
  }
  EXPECT_EQ(ambiguous, 12);
  EXPECT_EQ(symmetric, 4);
  EXPECT_TRUE(tables.chi_is_symmetric[static_cast<size_t>(type_of_letter('E'))][2]);
  EXPECT_TRUE(tables.chi_is_symmetric[static_cast<size_t>(type_of_letter('Y'))][1]);
}

TEST(Residues, BackboneFrameEqualsG14) {
  const Frame frame = backbone_frame({1, 2, 0}, {0, 1, .5}, {-1, .5, 2});
  golden::expect_near(frame.rows[0], {-.5345224838249, .3984095364448, -.7453559924999}, 5e-13);
  golden::expect_near(frame.rows[1], {-.2672612419124, .7569781192451, .5962847939999}, 5e-13);
  golden::expect_near(frame.rows[2], {.8017837257373, .5179323973782, -.298142397}, 5e-13);
  golden::expect_near(frame.origin, {0, 1, .5}, 0);
}

TEST(Residues, VirtualBetaCarbonEqualsG32) {
  golden::expect_near(virtual_c_beta({1, 2, 0}, {0, 1, .5}, {-1, .5, 2}), {.7010642775, .11957475, .26436930}, 5e-9);
}

TEST(Residues, PlacedAtomsEqualG16) {
  const auto atoms = four_residues(std::vector<Point>(4));
  golden::expect_near(atom_of(atoms[0], kFour[0], "O"), {2.153, -.7399025253267, -.7618321685353}, 5e-13);
  golden::expect_near(atom_of(atoms[1], kFour[1], "NH2"), {1.582363285545, -3.178498026278, -6.203923288256}, 5e-12);
  double sum = 0, n = 0;
  for (const auto& residue : atoms)
    for (const Point& point : residue)
      for (const double x : {point.x, point.y, point.z}) sum += x * std::sin(++n);
  EXPECT_NEAR(sum, -.495988391092, 5e-13);
}

TEST(Residues, AlanineWithoutAnglesEqualsG17) {
  const std::vector<Point> atoms = place_atoms(0, std::vector<double>(7));
  const std::vector<Point> wanted{{-.525, 1.363, 0}, {}, {1.526, 0, 0}, {2.153, -1.062, 0}, {-.529, -.774, -1.205}};
  for (size_t slot = 0; slot < wanted.size(); ++slot) golden::expect_near(atoms[slot], wanted[slot], 1e-15);
}

TEST(Residues, TorsionsEqualG18) {
  const auto atoms = four_residues({{0, 0, 0}, {3, 1, .5}, {6.2, -.4, .9}, {8, 2, 2}});
  const auto at = [&](size_t i, const char* name) { return atom_of(atoms[i], kFour[i], name); };
  EXPECT_NEAR(torsion(at(0, "CA"), at(0, "C"), at(1, "N"), at(1, "CA")), 2.860121539388, 5e-13);
  EXPECT_NEAR(torsion(at(0, "C"), at(1, "N"), at(1, "CA"), at(1, "C")), 2.860975524987, 5e-13);
  const double psi = torsion(at(1, "N"), at(1, "CA"), at(1, "C"), at(1, "O")) + std::numbers::pi;
  EXPECT_NEAR(psi, 1.1, 1e-12);
  const auto& chis = residue_tables().chi_atoms[static_cast<size_t>(kFour[1])];
  for (size_t chi = 0; chi < 4; ++chi) {
    Point points[4];
    for (size_t k = 0; k < 4; ++k) points[k] = at(1, name_of_atom37(static_cast<int>(chis[chi][k])));
    EXPECT_NEAR(torsion(points[0], points[1], points[2], points[3]), 1.5 + .4 * static_cast<double>(chi), 1e-12);
  }
  EXPECT_EQ(torsion({}, {}, {}, {}), 0);
}

TEST(Stereochemistry, BondsBetweenResiduesEqualG30) {
  std::vector<Point> moves;
  for (const double i : {0., 1., 2., 3.}) moves.push_back({3.3 * i, .4 * i, -.3 * i});
  const auto atoms = four_residues(moves);
  const auto excess = [](double value, const Literature& wanted, double deviation) {
    return std::max(0., std::sqrt(1e-6 + (value - wanted.mean) * (value - wanted.mean)) - 12 * deviation);
  };
  double bond = 0, first = 0, second = 0;
  for (size_t i = 0; i < 3; ++i) {
    const Literature length = kFour[i + 1] == type_of_letter('P') ? kBondCNProline : kBondCN;
    const Point ca = atoms[i][1], c = atoms[i][2], n = atoms[i + 1][0], next = atoms[i + 1][1];
    const auto long_norm = [](const Point& x) { return std::sqrt(1e-6 + dot(x, x)); };
    const double ca_c = long_norm(ca - c), c_n = long_norm(c - n), n_ca = long_norm(n - next);
    bond += excess(c_n, length, length.deviation);
    first += excess(dot(ca - c, n - c) / (ca_c * c_n), kCosineCaCN, kBondCN.deviation);
    second += excess(dot(c - n, next - n) / (c_n * n_ca), kCosineCNCa, kCosineCNCa.deviation);
  }
  EXPECT_NEAR(bond / (3 + 1e-6), .6471929656704, 5e-13);
  EXPECT_EQ(first, 0);
  EXPECT_NEAR(second / (3 + 1e-6), .6321607697989, 5e-13);
}

TEST(Stereochemistry, ClashesEqualG30) {
  std::vector<Point> moves;
  for (const double i : {0., 1., 2., 3.}) moves.push_back({3.3 * i, .4 * i, -.3 * i});
  const auto atoms = four_residues(moves);
  const auto radii = atom14_radii();
  double sum = 0, pairs = 0;
  std::vector<std::vector<bool>> clashes(4, std::vector<bool>(kAtom14));
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = i + 1; j < 4; ++j)
      for (size_t a = 0; a < kAtom14; ++a)
        for (size_t b = 0; b < kAtom14; ++b) {
          const double first = radii[static_cast<size_t>(kFour[i])][a],
                       second = radii[static_cast<size_t>(kFour[j])][b];
          const bool is_bond = j == i + 1 && a == 2 && b == 0, is_disulfide = a == 5 && b == 5;
          if (first == 0 || second == 0 || is_bond || is_disulfide) continue;
          const Point apart = atoms[i][a] - atoms[j][b];
          const double error = std::max(0., first + second - 1.5 - std::sqrt(1e-10 + dot(apart, apart)));
          sum += error;
          ++pairs;
          if (error > 0) clashes[i][a] = clashes[j][b] = true;
        }
  int atoms_in_clashes = 0;
  for (const auto& residue : clashes)
    for (const bool is_in : residue) atoms_in_clashes += is_in ? 1 : 0;
  EXPECT_NEAR(sum / (1e-6 + pairs), .008394815305059, 5e-15);
  EXPECT_NEAR(2 * sum, 4.28135582237, 5e-12) << "both atoms of a pair";
  EXPECT_EQ(atoms_in_clashes, 11);
}

// Sums of all values of AlphaFold's make_atom14_dists_bounds(1.5, 12), in double precision.
TEST(Stereochemistry, BoundsEqualThoseOfAlphaFold) {
  const Atom14Bounds bounds = atom14_bounds({.tolerance = 12, .overlap = 1.5});
  double lower = 0, upper = 0, deviation = 0, n = 0;
  for (size_t type = 0; type < kTableTypes; ++type)
    for (size_t i = 0; i < kAtom14; ++i)
      for (size_t j = 0; j < kAtom14; ++j) {
        const double factor = std::sin(++n);
        lower += factor * bounds.lower[type][i][j];
        upper += bounds.upper[type][i][j] < 1e9 ? factor * bounds.upper[type][i][j] : 0;
        deviation += factor * bounds.deviation[type][i][j];
        EXPECT_EQ(bounds.lower[type][i][j], bounds.lower[type][j][i]);
      }
  EXPECT_NEAR(lower, 7.277949747549565, 1e-11);
  EXPECT_NEAR(upper, -1.9446181493650778, 1e-11);
  EXPECT_NEAR(deviation, .013000176882594888, 1e-11);
  EXPECT_NEAR(bounds.lower[0][0][1], 1.459 - 12 * .02, 1e-15);
}

TEST(Stereochemistry, RadiiHaveFourElements) { EXPECT_THROW(van_der_waals_radius('H'), Error); }

}  // namespace
}  // namespace colossal::protein::residues_test
