#include "support/few_residues.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <stdexcept>

namespace colossal::test {
namespace {

using Point = std::array<double, 3>;

struct Atom {
  std::string name;
  int64_t group;
  Point place;  // in the group; the values of Jumper et al. 2021
};

struct Residue {
  char letter;
  int64_t type;
  std::vector<Atom> atoms;  // in their slots of 14
  std::vector<std::array<std::string, 4>> chis;
};

const std::vector<Residue>& residues() {
  static const std::vector<Residue> all{
      {'A',
       0,
       {{"N", 0, {-.525, 1.363, 0}},
        {"CA", 0, {0, 0, 0}},
        {"C", 0, {1.526, 0, 0}},
        {"O", 3, {.627, 1.062, 0}},
        {"CB", 0, {-.529, -.774, -1.205}}},
       {}},
      {'R',
       1,
       {{"N", 0, {-.524, 1.362, 0}},
        {"CA", 0, {0, 0, 0}},
        {"C", 0, {1.525, 0, 0}},
        {"O", 3, {.626, 1.062, 0}},
        {"CB", 0, {-.524, -.778, -1.209}},
        {"CG", 4, {.616, 1.39, 0}},
        {"CD", 5, {.564, 1.414, 0}},
        {"NE", 6, {.539, 1.357, 0}},
        {"CZ", 7, {.758, 1.093, 0}},
        {"NH1", 7, {.206, 2.301, 0}},
        {"NH2", 7, {2.078, .978, 0}}},
       {{"N", "CA", "CB", "CG"}, {"CA", "CB", "CG", "CD"}, {"CB", "CG", "CD", "NE"}, {"CG", "CD", "NE", "CZ"}}},
      {'N',
       2,
       {{"N", 0, {-.536, 1.357, 0}},
        {"CA", 0, {0, 0, 0}},
        {"C", 0, {1.526, 0, 0}},
        {"O", 3, {.625, 1.062, 0}},
        {"CB", 0, {-.531, -.787, -1.2}},
        {"CG", 4, {.584, 1.399, 0}},
        {"OD1", 5, {.633, 1.059, 0}},
        {"ND2", 5, {.593, -1.188, .001}}},
       {{"N", "CA", "CB", "CG"}, {"CA", "CB", "CG", "OD1"}}},
      {'D',
       3,
       {{"N", 0, {-.525, 1.362, 0}},
        {"CA", 0, {0, 0, 0}},
        {"C", 0, {1.527, 0, 0}},
        {"O", 3, {.626, 1.062, 0}},
        {"CB", 0, {-.526, -.778, -1.208}},
        {"CG", 4, {.593, 1.398, 0}},
        {"OD1", 5, {.61, 1.091, 0}},
        {"OD2", 5, {.592, -1.101, -.003}}},
       {{"N", "CA", "CB", "CG"}, {"CA", "CB", "CG", "OD1"}}},
      {'G',
       7,
       {{"N", 0, {-.572, 1.337, 0}}, {"CA", 0, {0, 0, 0}}, {"C", 0, {1.517, 0, 0}}, {"O", 3, {.626, 1.062, 0}}},
       {}},
      {'P',
       14,
       {{"N", 0, {-.566, 1.351, 0}},
        {"CA", 0, {0, 0, 0}},
        {"C", 0, {1.527, 0, 0}},
        {"O", 3, {.621, 1.066, 0}},
        {"CB", 0, {-.546, -.611, -1.293}},
        {"CG", 4, {.382, 1.445, 0}},
        {"CD", 5, {.477, 1.424, 0}}},
       {{"N", "CA", "CB", "CG"}, {"CA", "CB", "CG", "CD"}}},
      {'Y',
       18,
       {{"N", 0, {-.522, 1.362, 0}},
        {"CA", 0, {0, 0, 0}},
        {"C", 0, {1.524, 0, 0}},
        {"O", 3, {.627, 1.062, 0}},
        {"CB", 0, {-.522, -.776, -1.213}},
        {"CG", 4, {.607, 1.382, 0}},
        {"CD1", 5, {.716, 1.195, 0}},
        {"CD2", 5, {.713, -1.194, -.001}},
        {"CE1", 5, {2.107, 1.2, -.002}},
        {"CE2", 5, {2.104, -1.201, -.003}},
        {"CZ", 5, {2.791, -.001, -.003}},
        {"OH", 5, {4.168, -.002, -.005}}},
       {{"N", "CA", "CB", "CG"}, {"CA", "CB", "CG", "CD1"}}}};
  return all;
}

/// Returns the slot of 37 of a name.
int64_t name_slot(const std::string& name) {
  static const std::vector<std::string> names{"N",   "CA",  "C",   "CB",  "O",   "CG",  "CG1", "CG2", "OG",  "OG1",
                                              "SG",  "CD",  "CD1", "CD2", "ND1", "ND2", "OD1", "OD2", "SD",  "CE",
                                              "CE1", "CE2", "CE3", "NE",  "NE1", "NE2", "OE1", "OE2", "CH2", "NH1",
                                              "NH2", "OH",  "CZ",  "CZ2", "CZ3", "NZ",  "OXT"};
  return std::find(names.begin(), names.end(), name) - names.begin();
}

double radius_of(const std::string& name) { return name[0] == 'C' ? 1.7 : name[0] == 'N' ? 1.55 : 1.52; }

const Atom& atom_of(const Residue& residue, const std::string& name) {
  for (const Atom& atom : residue.atoms)
    if (atom.name == name) return atom;
  throw std::logic_error("no atom " + name);
}

/// Writes the frame with this first axis, plane and origin to rows [3, 4].
void put_frame(const at::Tensor& rows, Point x, Point y, const Point& origin) {
  const auto length = [](const Point& p) { return std::sqrt(p[0] * p[0] + p[1] * p[1] + p[2] * p[2]); };
  const double long_x = length(x);
  for (double& c : x) c /= long_x;
  const double along = x[0] * y[0] + x[1] * y[1] + x[2] * y[2];
  for (size_t c = 0; c < 3; ++c) y[c] -= along * x[c];
  const double long_y = length(y);
  for (double& c : y) c /= long_y;
  const Point z{x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0]};
  for (int64_t c = 0; c < 3; ++c) {
    const auto i = static_cast<size_t>(c);
    rows[c].copy_(at::tensor({x[i], y[i], z[i], origin[i]}, at::kDouble));
  }
}

Point minus(const Point& a, const Point& b) { return {a[0] - b[0], a[1] - b[1], a[2] - b[2]}; }

void put_frames(const at::Tensor& groups, const Residue& residue) {
  const Point n = atom_of(residue, "N").place, ca{}, c = atom_of(residue, "C").place;
  put_frame(groups[2], minus(n, ca), {1, 0, 0}, n);
  put_frame(groups[3], minus(c, ca), minus(ca, n), c);
  for (size_t k = 0; k < residue.chis.size(); ++k) {
    const Point end = atom_of(residue, residue.chis[k][2]).place;
    const at::Tensor rows = groups[static_cast<int64_t>(4 + k)];
    k == 0 ? put_frame(rows, minus(end, ca), minus(n, ca), end) : put_frame(rows, end, {-1, 0, 0}, end);
  }
}

void put_atoms(const ops::ResidueTables& t, const Residue& residue) {
  const int64_t type = residue.type;
  for (size_t i = 0; i < residue.atoms.size(); ++i) {
    const Atom& atom = residue.atoms[i];
    const auto slot = static_cast<int64_t>(i);
    const int64_t name = name_slot(atom.name);
    t.group14[type][slot] = atom.group;
    t.positions14[type][slot].copy_(at::tensor({atom.place[0], atom.place[1], atom.place[2]}, at::kDouble));
    t.mask14[type][slot] = 1;
    t.names14[type][slot] = name;
    t.slots37[type][name] = slot;
    t.mask37[type][name] = 1;
    t.radii14[type][slot] = radius_of(atom.name);
  }
  for (size_t k = 0; k < residue.chis.size(); ++k) {
    const auto chi = static_cast<int64_t>(k);
    t.chi_mask[type][chi] = 1;
    for (size_t i = 0; i < 4; ++i) t.chi_atoms[type][chi][static_cast<int64_t>(i)] = name_slot(residue.chis[k][i]);
  }
}

}  // namespace

ops::ResidueTables few_residues() {
  const auto zeros = [](at::IntArrayRef sizes) { return at::zeros(sizes, at::kDouble); };
  const auto indices = [](at::IntArrayRef sizes) { return at::zeros(sizes, at::kLong); };
  ops::ResidueTables t{.group_frames = zeros({21, 8, 3, 4}),
                       .group14 = indices({21, 14}),
                       .positions14 = zeros({21, 14, 3}),
                       .mask14 = zeros({21, 14}),
                       .names14 = indices({21, 14}),
                       .slots37 = indices({21, 37}),
                       .mask37 = zeros({21, 37}),
                       .chi_atoms = indices({21, 4, 4}),
                       .chi_mask = zeros({21, 4}),
                       .chi_period = zeros({21, 4}),
                       .renamed14 = at::arange(14, at::kLong).repeat({21, 1}),
                       .radii14 = zeros({21, 14}),
                       .shortest14 = zeros({21, 14, 14}),
                       .longest14 = zeros({21, 14, 14})};
  t.group_frames.narrow(-1, 0, 3).copy_(at::eye(3, at::kDouble));
  for (const Residue& residue : residues()) {
    put_atoms(t, residue);
    put_frames(t.group_frames[residue.type], residue);
  }
  for (const auto& [letter, first, second] :
       {std::tuple{'D', "OD1", "OD2"}, {'Y', "CD1", "CD2"}, {'Y', "CE1", "CE2"}}) {
    const at::Tensor renamed = t.renamed14[types_of(std::string(1, letter))[0].item<int64_t>()];
    renamed[slot_of(letter, first)] = slot_of(letter, second);
    renamed[slot_of(letter, second)] = slot_of(letter, first);
  }
  t.chi_period[3][1] = 1;
  t.chi_period[18][1] = 1;
  return t;
}

at::Tensor types_of(const std::string& letters) {
  std::vector<int64_t> types;
  for (const char letter : letters)
    for (const Residue& residue : residues())
      if (residue.letter == letter) types.push_back(residue.type);
  return at::tensor(types, at::kLong);
}

int64_t slot_of(char letter, const std::string& atom) {
  for (const Residue& residue : residues())
    if (residue.letter == letter) return &atom_of(residue, atom) - residue.atoms.data();
  throw std::logic_error("no residue");
}

at::Tensor cosines(double a, const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::TensorOptions(at::kDouble)) * a).cos().view(sizes);
}

at::Tensor signature(const at::Tensor& x) {
  return (x.flatten() * (at::arange(x.numel(), at::TensorOptions(at::kDouble)) + 1).sin()).sum();
}

}  // namespace colossal::test
