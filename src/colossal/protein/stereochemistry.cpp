#include "colossal/protein/stereochemistry.h"

#include <cmath>
#include <numbers>
#include <string_view>

#include "colossal/base/error.h"

namespace colossal::protein {
namespace {

/// A bond of the residues in `letters`, in Angstrom.
struct BondRow {
  const char* letters;
  const char* atoms[2];
  double length, deviation;
};
constexpr BondRow kBonds[] = {
    {"A", {"CA", "CB"}, 1.52, 0.021},
    {"ARNDCQEHILKMFSTWYV", {"N", "CA"}, 1.459, 0.02},
    {"ARNDCQEHILKMFSTWYV", {"CA", "C"}, 1.525, 0.026},
    {"ARNDCQEHILKMFSTWYV", {"C", "O"}, 1.229, 0.019},
    {"RDQEHKMFWY", {"CA", "CB"}, 1.535, 0.022},
    {"RQK", {"CB", "CG"}, 1.521, 0.027},
    {"R", {"CG", "CD"}, 1.515, 0.025},
    {"R", {"CD", "NE"}, 1.46, 0.017},
    {"R", {"NE", "CZ"}, 1.326, 0.013},
    {"R", {"CZ", "NH1"}, 1.326, 0.013},
    {"R", {"CZ", "NH2"}, 1.326, 0.013},
    {"N", {"CA", "CB"}, 1.527, 0.026},
    {"N", {"CB", "CG"}, 1.506, 0.023},
    {"N", {"CG", "OD1"}, 1.235, 0.022},
    {"N", {"CG", "ND2"}, 1.324, 0.025},
    {"D", {"CB", "CG"}, 1.513, 0.021},
    {"D", {"CG", "OD1"}, 1.249, 0.023},
    {"D", {"CG", "OD2"}, 1.249, 0.023},
    {"C", {"CA", "CB"}, 1.526, 0.013},
    {"C", {"CB", "SG"}, 1.812, 0.016},
    {"E", {"CB", "CG"}, 1.517, 0.019},
    {"E", {"CG", "CD"}, 1.515, 0.015},
    {"E", {"CD", "OE1"}, 1.252, 0.011},
    {"E", {"CD", "OE2"}, 1.252, 0.011},
    {"Q", {"CG", "CD"}, 1.506, 0.023},
    {"Q", {"CD", "OE1"}, 1.235, 0.022},
    {"Q", {"CD", "NE2"}, 1.324, 0.025},
    {"G", {"N", "CA"}, 1.456, 0.015},
    {"G", {"CA", "C"}, 1.514, 0.016},
    {"G", {"C", "O"}, 1.232, 0.016},
    {"H", {"CB", "CG"}, 1.492, 0.016},
    {"H", {"CG", "ND1"}, 1.369, 0.015},
    {"H", {"CG", "CD2"}, 1.353, 0.017},
    {"H", {"ND1", "CE1"}, 1.343, 0.025},
    {"H", {"CD2", "NE2"}, 1.415, 0.021},
    {"H", {"CE1", "NE2"}, 1.322, 0.023},
    {"I", {"CA", "CB"}, 1.544, 0.023},
    {"I", {"CB", "CG1"}, 1.536, 0.028},
    {"I", {"CB", "CG2"}, 1.524, 0.031},
    {"I", {"CG1", "CD1"}, 1.5, 0.069},
    {"L", {"CA", "CB"}, 1.533, 0.023},
    {"L", {"CB", "CG"}, 1.521, 0.029},
    {"L", {"CG", "CD1"}, 1.514, 0.037},
    {"L", {"CG", "CD2"}, 1.514, 0.037},
    {"K", {"CG", "CD"}, 1.52, 0.034},
    {"K", {"CD", "CE"}, 1.508, 0.025},
    {"K", {"CE", "NZ"}, 1.486, 0.025},
    {"M", {"CB", "CG"}, 1.509, 0.032},
    {"M", {"CG", "SD"}, 1.807, 0.026},
    {"M", {"SD", "CE"}, 1.774, 0.056},
    {"F", {"CB", "CG"}, 1.509, 0.017},
    {"F", {"CG", "CD1"}, 1.383, 0.015},
    {"F", {"CG", "CD2"}, 1.383, 0.015},
    {"F", {"CD1", "CE1"}, 1.388, 0.02},
    {"F", {"CD2", "CE2"}, 1.388, 0.02},
    {"F", {"CE1", "CZ"}, 1.369, 0.019},
    {"F", {"CE2", "CZ"}, 1.369, 0.019},
    {"P", {"CA", "CB"}, 1.531, 0.02},
    {"P", {"CB", "CG"}, 1.495, 0.05},
    {"P", {"CG", "CD"}, 1.502, 0.033},
    {"P", {"CD", "N"}, 1.474, 0.014},
    {"P", {"N", "CA"}, 1.468, 0.017},
    {"P", {"CA", "C"}, 1.524, 0.02},
    {"P", {"C", "O"}, 1.228, 0.02},
    {"S", {"CA", "CB"}, 1.525, 0.015},
    {"S", {"CB", "OG"}, 1.418, 0.013},
    {"T", {"CA", "CB"}, 1.529, 0.026},
    {"T", {"CB", "OG1"}, 1.428, 0.02},
    {"T", {"CB", "CG2"}, 1.519, 0.033},
    {"W", {"CB", "CG"}, 1.498, 0.018},
    {"W", {"CG", "CD1"}, 1.363, 0.014},
    {"W", {"CG", "CD2"}, 1.432, 0.017},
    {"W", {"CD1", "NE1"}, 1.375, 0.017},
    {"W", {"NE1", "CE2"}, 1.371, 0.013},
    {"W", {"CD2", "CE2"}, 1.409, 0.012},
    {"W", {"CD2", "CE3"}, 1.399, 0.015},
    {"W", {"CE2", "CZ2"}, 1.393, 0.017},
    {"W", {"CE3", "CZ3"}, 1.38, 0.017},
    {"W", {"CZ2", "CH2"}, 1.369, 0.019},
    {"W", {"CZ3", "CH2"}, 1.396, 0.016},
    {"Y", {"CB", "CG"}, 1.512, 0.015},
    {"Y", {"CG", "CD1"}, 1.387, 0.013},
    {"Y", {"CG", "CD2"}, 1.387, 0.013},
    {"Y", {"CD1", "CE1"}, 1.389, 0.015},
    {"Y", {"CD2", "CE2"}, 1.389, 0.015},
    {"Y", {"CE1", "CZ"}, 1.381, 0.013},
    {"Y", {"CE2", "CZ"}, 1.381, 0.013},
    {"Y", {"CZ", "OH"}, 1.374, 0.017},
    {"V", {"CA", "CB"}, 1.543, 0.021},
    {"V", {"CB", "CG1"}, 1.524, 0.021},
    {"V", {"CB", "CG2"}, 1.524, 0.021},
};

/// An angle of the residues in `letters` at the second atom, in degrees.
struct AngleRow {
  const char* letters;
  const char* atoms[3];
  double angle, deviation;
};
constexpr AngleRow kAngles[] = {
    {"A", {"N", "CA", "CB"}, 110.1, 1.4},
    {"A", {"CB", "CA", "C"}, 110.1, 1.5},
    {"ARNDCQEHILKMFSTWYV", {"N", "CA", "C"}, 111, 2.7},
    {"ARNDCQEHILKMFSTWYV", {"CA", "C", "O"}, 120.1, 2.1},
    {"RNDQEHKMFWY", {"N", "CA", "CB"}, 110.6, 1.8},
    {"RNDQEHKMFWY", {"CB", "CA", "C"}, 110.4, 2},
    {"RNDQEK", {"CA", "CB", "CG"}, 113.4, 2.2},
    {"RQK", {"CB", "CG", "CD"}, 111.6, 2.6},
    {"R", {"CG", "CD", "NE"}, 111.8, 2.1},
    {"R", {"CD", "NE", "CZ"}, 123.6, 1.4},
    {"R", {"NE", "CZ", "NH1"}, 120.3, 0.5},
    {"R", {"NE", "CZ", "NH2"}, 120.3, 0.5},
    {"R", {"NH1", "CZ", "NH2"}, 119.4, 1.1},
    {"N", {"CB", "CG", "ND2"}, 116.7, 2.4},
    {"N", {"CB", "CG", "OD1"}, 121.6, 2},
    {"N", {"ND2", "CG", "OD1"}, 121.9, 2.3},
    {"D", {"CB", "CG", "OD1"}, 118.3, 0.9},
    {"D", {"CB", "CG", "OD2"}, 118.3, 0.9},
    {"D", {"OD1", "CG", "OD2"}, 123.3, 1.9},
    {"C", {"N", "CA", "CB"}, 110.8, 1.5},
    {"C", {"CB", "CA", "C"}, 111.5, 1.2},
    {"C", {"CA", "CB", "SG"}, 114.2, 1.1},
    {"E", {"CB", "CG", "CD"}, 114.2, 2.7},
    {"E", {"CG", "CD", "OE1"}, 118.3, 2},
    {"E", {"CG", "CD", "OE2"}, 118.3, 2},
    {"E", {"OE1", "CD", "OE2"}, 123.3, 1.2},
    {"Q", {"CG", "CD", "OE1"}, 121.6, 2},
    {"Q", {"CG", "CD", "NE2"}, 116.7, 2.4},
    {"Q", {"OE1", "CD", "NE2"}, 121.9, 2.3},
    {"G", {"N", "CA", "C"}, 113.1, 2.5},
    {"G", {"CA", "C", "O"}, 120.6, 1.8},
    {"H", {"CA", "CB", "CG"}, 113.6, 1.7},
    {"H", {"CB", "CG", "ND1"}, 123.2, 2.5},
    {"H", {"CB", "CG", "CD2"}, 130.8, 3.1},
    {"H", {"CG", "ND1", "CE1"}, 108.2, 1.4},
    {"H", {"ND1", "CE1", "NE2"}, 109.9, 2.2},
    {"H", {"CE1", "NE2", "CD2"}, 106.6, 2.5},
    {"H", {"NE2", "CD2", "CG"}, 109.2, 1.9},
    {"H", {"CD2", "CG", "ND1"}, 106, 1.4},
    {"I", {"N", "CA", "CB"}, 110.8, 2.3},
    {"I", {"CB", "CA", "C"}, 111.6, 2},
    {"I", {"CA", "CB", "CG1"}, 111, 1.9},
    {"I", {"CB", "CG1", "CD1"}, 113.9, 2.8},
    {"I", {"CA", "CB", "CG2"}, 110.9, 2},
    {"I", {"CG1", "CB", "CG2"}, 111.4, 2.2},
    {"L", {"N", "CA", "CB"}, 110.4, 2},
    {"L", {"CB", "CA", "C"}, 110.2, 1.9},
    {"L", {"CA", "CB", "CG"}, 115.3, 2.3},
    {"L", {"CB", "CG", "CD1"}, 111, 1.7},
    {"L", {"CB", "CG", "CD2"}, 111, 1.7},
    {"L", {"CD1", "CG", "CD2"}, 110.5, 3},
    {"K", {"CG", "CD", "CE"}, 111.9, 3},
    {"K", {"CD", "CE", "NZ"}, 111.7, 2.3},
    {"M", {"CA", "CB", "CG"}, 113.3, 1.7},
    {"M", {"CB", "CG", "SD"}, 112.4, 3},
    {"M", {"CG", "SD", "CE"}, 100.2, 1.6},
    {"F", {"CA", "CB", "CG"}, 113.9, 2.4},
    {"F", {"CB", "CG", "CD1"}, 120.8, 0.7},
    {"F", {"CB", "CG", "CD2"}, 120.8, 0.7},
    {"F", {"CD1", "CG", "CD2"}, 118.3, 1.3},
    {"F", {"CG", "CD1", "CE1"}, 120.8, 1.1},
    {"F", {"CG", "CD2", "CE2"}, 120.8, 1.1},
    {"F", {"CD1", "CE1", "CZ"}, 120.1, 1.2},
    {"F", {"CD2", "CE2", "CZ"}, 120.1, 1.2},
    {"F", {"CE1", "CZ", "CE2"}, 120, 1.8},
    {"P", {"N", "CA", "CB"}, 103.3, 1.2},
    {"P", {"CB", "CA", "C"}, 111.7, 2.1},
    {"P", {"CA", "CB", "CG"}, 104.8, 1.9},
    {"P", {"CB", "CG", "CD"}, 106.5, 3.9},
    {"P", {"CG", "CD", "N"}, 103.2, 1.5},
    {"P", {"CA", "N", "CD"}, 111.7, 1.4},
    {"P", {"N", "CA", "C"}, 112.1, 2.6},
    {"P", {"CA", "C", "O"}, 120.2, 2.4},
    {"S", {"N", "CA", "CB"}, 110.5, 1.5},
    {"S", {"CB", "CA", "C"}, 110.1, 1.9},
    {"S", {"CA", "CB", "OG"}, 111.2, 2.7},
    {"T", {"N", "CA", "CB"}, 110.3, 1.9},
    {"T", {"CB", "CA", "C"}, 111.6, 2.7},
    {"T", {"CA", "CB", "OG1"}, 109, 2.1},
    {"T", {"CA", "CB", "CG2"}, 112.4, 1.4},
    {"T", {"OG1", "CB", "CG2"}, 110, 2.3},
    {"W", {"CA", "CB", "CG"}, 113.7, 1.9},
    {"W", {"CB", "CG", "CD1"}, 127, 1.3},
    {"W", {"CB", "CG", "CD2"}, 126.6, 1.3},
    {"W", {"CD1", "CG", "CD2"}, 106.3, 0.8},
    {"W", {"CG", "CD1", "NE1"}, 110.1, 1},
    {"W", {"CD1", "NE1", "CE2"}, 109, 0.9},
    {"W", {"NE1", "CE2", "CD2"}, 107.3, 1},
    {"W", {"CE2", "CD2", "CG"}, 107.3, 0.8},
    {"W", {"CG", "CD2", "CE3"}, 133.9, 0.9},
    {"W", {"NE1", "CE2", "CZ2"}, 130.4, 1.1},
    {"W", {"CE3", "CD2", "CE2"}, 118.7, 1.2},
    {"W", {"CD2", "CE2", "CZ2"}, 122.3, 1.2},
    {"W", {"CE2", "CZ2", "CH2"}, 117.4, 1},
    {"W", {"CZ2", "CH2", "CZ3"}, 121.6, 1.2},
    {"W", {"CH2", "CZ3", "CE3"}, 121.2, 1.1},
    {"W", {"CZ3", "CE3", "CD2"}, 118.8, 1.3},
    {"Y", {"CA", "CB", "CG"}, 113.4, 1.9},
    {"Y", {"CB", "CG", "CD1"}, 121, 0.6},
    {"Y", {"CB", "CG", "CD2"}, 121, 0.6},
    {"Y", {"CD1", "CG", "CD2"}, 117.9, 1.1},
    {"Y", {"CG", "CD1", "CE1"}, 121.3, 0.8},
    {"Y", {"CG", "CD2", "CE2"}, 121.3, 0.8},
    {"Y", {"CD1", "CE1", "CZ"}, 119.8, 0.9},
    {"Y", {"CD2", "CE2", "CZ"}, 119.8, 0.9},
    {"Y", {"CE1", "CZ", "CE2"}, 119.8, 1.6},
    {"Y", {"CE1", "CZ", "OH"}, 120.1, 2.7},
    {"Y", {"CE2", "CZ", "OH"}, 120.1, 2.7},
    {"V", {"N", "CA", "CB"}, 111.5, 2.2},
    {"V", {"CB", "CA", "C"}, 111.4, 1.9},
    {"V", {"CA", "CB", "CG1"}, 110.9, 1.5},
    {"V", {"CA", "CB", "CG2"}, 110.9, 1.5},
    {"V", {"CG1", "CB", "CG2"}, 110.9, 1.6},
};

size_t slot_of(size_t type, const char* atom) {
  const auto atom37 = static_cast<size_t>(atom37_of_name(atom));
  require(residue_tables().atom37_exists[type][atom37], "protein", name_of_type(static_cast<int>(type)),
          " must have the atom ", atom, " of a row");
  return static_cast<size_t>(residue_tables().atom37_to_atom14[type][atom37]);
}

double squared(double x) { return x * x; }

/// Lengths of bonds of one residue, [atom14][atom14], with their deviations.
struct Bonds {
  Table<Literature, kAtom14, kAtom14> between{};
  void add(size_t first, size_t second, Literature length) { between[first][second] = between[second][first] = length; }
};

Bonds bonds_of(size_t type) {
  Bonds bonds;
  for (const BondRow& row : kBonds)
    if (std::string_view(row.letters).find(letter_of_type(static_cast<int>(type))) != std::string_view::npos)
      bonds.add(slot_of(type, row.atoms[0]), slot_of(type, row.atoms[1]), {row.length, row.deviation});
  return bonds;
}

/// Returns the distance of the ends of two bonds with an angle between them.
Literature across(const Literature& a, const Literature& b, double angle, double deviation) {
  const double cosine = std::cos(angle),
               length = std::sqrt(squared(a.mean) + squared(b.mean) - 2 * a.mean * b.mean * cosine);
  const double by_angle = a.mean * b.mean * std::sin(angle) / length;
  const double by_a = (a.mean - b.mean * cosine) / length, by_b = (b.mean - a.mean * cosine) / length;
  return {length, std::sqrt(squared(by_angle * deviation) + squared(by_a * a.deviation) + squared(by_b * b.deviation))};
}

/// Returns bonds, and distances across angles, of one residue.
Bonds distances_of(size_t type) {
  const Bonds bonds = bonds_of(type);
  Bonds all = bonds;
  for (const AngleRow& row : kAngles) {
    if (std::string_view(row.letters).find(letter_of_type(static_cast<int>(type))) == std::string_view::npos) continue;
    const size_t first = slot_of(type, row.atoms[0]), middle = slot_of(type, row.atoms[1]),
                 last = slot_of(type, row.atoms[2]);
    constexpr double kDegree = std::numbers::pi / 180;
    all.add(first, last,
            across(bonds.between[first][middle], bonds.between[middle][last], row.angle * kDegree,
                   row.deviation * kDegree));
  }
  return all;
}

}  // namespace

double van_der_waals_radius(char element) {
  switch (element) {
    case 'C':
      return 1.7;
    case 'N':
      return 1.55;
    case 'O':
      return 1.52;
    case 'S':
      return 1.8;
    default:
      throw Error("protein", concat("an element with a radius must be C, N, O or S: got `", element, "`"));
  }
}

Table<double, kTableTypes, kAtom14> atom14_radii() {
  Table<double, kTableTypes, kAtom14> radii{};
  for (size_t type = 0; type < kTypes; ++type)
    for (size_t slot = 0; slot < kAtom14; ++slot)
      if (residue_tables().atom14_exists[type][slot])
        radii[type][slot] =
            van_der_waals_radius(element_of_atom37(static_cast<int>(residue_tables().atom14_to_atom37[type][slot])));
  return radii;
}

Atom14Bounds atom14_bounds(const BoundsOptions& options) {
  constexpr double kNoBound = 1e10;
  const auto radii = atom14_radii();
  Atom14Bounds bounds;
  for (size_t type = 0; type < kTypes; ++type) {
    const Bonds distances = distances_of(type);
    for (size_t i = 0; i < kAtom14; ++i)
      for (size_t j = 0; j < kAtom14; ++j) {
        if (i == j || radii[type][i] == 0 || radii[type][j] == 0) continue;
        const Literature& known = distances.between[i][j];
        const bool is_known = known.mean > 0;
        bounds.deviation[type][i][j] = known.deviation;
        bounds.lower[type][i][j] = is_known ? known.mean - options.tolerance * known.deviation
                                            : radii[type][i] + radii[type][j] - options.overlap;
        bounds.upper[type][i][j] = is_known ? known.mean + options.tolerance * known.deviation : kNoBound;
      }
  }
  return bounds;
}

}  // namespace colossal::protein
