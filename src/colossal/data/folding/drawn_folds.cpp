#include "colossal/data/folding/drawn_folds.h"

#include <cmath>
#include <numbers>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/protein/residues.h"

namespace colossal::data {
namespace {

using protein::Point;

constexpr double kNewLetters = .3, kGaps = .05, kInsertions = .02;
constexpr int64_t kLongestInsertion = 3, kShortestStretch = 6, kLongestStretch = 14;
constexpr std::string_view kTurn = "NGD";

/// Angles in degrees.
struct FoldAngles {
  double phi, psi;
};
constexpr FoldAngles kTurnAngles[] = {{55, 40}, {60, 30}, {-70, -10}};

/// A kind of stretch.
struct FoldKind {
  std::string_view letters;
  FoldAngles angles;
};
constexpr FoldKind kKinds[] = {{"AELKMQR", {-57, -47}}, {"VIYFTWC", {-119, 113}}};

/// A residue of a chain before it is placed.
struct FoldResidue {
  std::string_view letters;  // of its kind
  FoldAngles angles;
};

/// A stream of numbers of a seed.
class FoldDraws {
 public:
  explicit FoldDraws(uint64_t seed) : seed_(seed) {}
  double share() { return uniform_of_seed(derive_seed(seed_, next_++)); }
  int64_t below(int64_t count) { return static_cast<int64_t>(share() * static_cast<double>(count)); }
  char letter_of(std::string_view letters) {
    return letters[static_cast<size_t>(below(static_cast<int64_t>(letters.size())))];
  }

 private:
  uint64_t seed_, next_ = 0;
};

/// Returns the point at the end of a bond c-d of that length, with the angle b-c-d and the torsion a-b-c-d in degrees.
Point fold_point(const Point& a, const Point& b, const Point& c, double length, double angle, double torsion) {
  const double theta = angle * std::numbers::pi / 180, turn = torsion * std::numbers::pi / 180;
  const Point along = (1 / norm(c - b)) * (c - b), across = cross(b - a, along);
  const Point normal = (1 / norm(across)) * across, third = cross(normal, along);
  return c + length * (-std::cos(theta) * along + std::sin(theta) * std::cos(turn) * third +
                       std::sin(theta) * std::sin(turn) * normal);
}

/// Appends the letters and angles of stretches and turns until there are so many residues.
std::vector<FoldResidue> drawn_residues(int64_t count, FoldDraws& draws, std::string& sequence) {
  std::vector<FoldResidue> residues;
  const auto is_full = [&] { return static_cast<int64_t>(residues.size()) == count; };
  while (!is_full()) {
    const FoldKind& kind = kKinds[draws.below(std::size(kKinds))];
    const int64_t length = kShortestStretch + draws.below(kLongestStretch - kShortestStretch + 1);
    for (int64_t i = 0; i < length && !is_full(); ++i) {
      residues.push_back({kind.letters, kind.angles});
      sequence += draws.letter_of(kind.letters);
    }
    for (size_t i = 0; i < kTurn.size() && !is_full(); ++i) {
      residues.push_back({kTurn, kTurnAngles[i]});
      sequence += kTurn[i];
    }
  }
  return residues;
}

/// Places the atoms of the backbone one after the other, then O and CB of each residue.
void place_atoms(const std::vector<FoldResidue>& residues, DrawnFold& fold) {
  const size_t count = residues.size();
  fold.atoms.assign(count, {});
  Point n{}, ca{1.458, 0, 0}, c = fold_point({0, 1, 0}, n, ca, 1.525, 111, 0);
  for (size_t i = 0; i < count; ++i) {
    std::array<Point, DrawnFold::kAtoms>& atoms = fold.atoms[i];
    const FoldAngles& angles = residues[i].angles;
    atoms[protein::kAtomN] = n, atoms[protein::kAtomCa] = ca, atoms[protein::kAtomC] = c;
    atoms[protein::kAtomO] = fold_point(n, ca, c, 1.231, 120.5, angles.psi + 180);
    const auto type = static_cast<size_t>(protein::type_of_letter(fold.sequence[i]));
    const protein::ResidueTables& tables = protein::residue_tables();
    constexpr size_t kCbSlot = 4;
    if (tables.atom37_exists[type][protein::kAtomCb])
      atoms[protein::kAtomCb] = protein::backbone_frame(n, ca, c).apply(tables.atom14_position[type][kCbSlot]);
    if (i + 1 == count) break;
    const Point next_n = fold_point(n, ca, c, 1.329, 116.2, angles.psi);
    const Point next_ca = fold_point(ca, c, next_n, 1.458, 121.7, 180);
    c = fold_point(c, next_n, next_ca, 1.525, 111, residues[i + 1].angles.phi);
    n = next_n, ca = next_ca;
  }
}

void add_relative(const std::vector<FoldResidue>& residues, int64_t number, FoldDraws& draws, DrawnFold& fold) {
  protein::Alignment& alignment = fold.alignment;
  std::string row;
  for (size_t i = 0; i < residues.size(); ++i) {
    const double share = draws.share();
    row += share < kGaps ? '-' : share < kGaps + kNewLetters ? draws.letter_of(residues[i].letters) : fold.sequence[i];
    const bool follows = draws.share() < kInsertions;
    alignment.deletions.push_back(follows ? static_cast<int32_t>(1 + draws.below(kLongestInsertion)) : 0);
  }
  alignment.rows.push_back(std::move(row));
  alignment.descriptions.push_back(concat("relative ", number));
}

}  // namespace

DrawnFold drawn_fold(uint64_t seed, const DrawnFoldSizes& sizes) {
  require(sizes.residues >= 1 && sizes.rows >= 1, "data", "a drawn fold needs a residue and a row: got ",
          sizes.residues, " residues and ", sizes.rows, " rows");
  DrawnFold fold;
  FoldDraws chain(derive_seed(seed, "chain"));
  const std::vector<FoldResidue> residues = drawn_residues(sizes.residues, chain, fold.sequence);
  place_atoms(residues, fold);
  fold.alignment = protein::single_row(fold.sequence, "drawn");
  for (int64_t row = 1; row < sizes.rows; ++row) {
    FoldDraws draws(derive_seed(derive_seed(seed, "rows"), static_cast<uint64_t>(row)));
    add_relative(residues, row, draws, fold);
  }
  return fold;
}

}  // namespace colossal::data
