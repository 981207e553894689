#include "colossal/protein/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/protein/sequence_alignment.h"
#include "colossal/protein/superposition.h"

namespace colossal::protein {
namespace {

constexpr std::array<double, 4> kLddtTolerances{.5, 1, 2, 4}, kGdtDistances{1, 2, 4, 8};
constexpr double kFarthest = 1e9;  // Angstrom from the origin

/// Best scores over superpositions of pairs of points.
class SuperpositionSearch {
 public:
  SuperpositionSearch(std::span<const Point> points, std::span<const Point> truth, double d0)
      : points_(points), truth_(truth), d0_(d0), search_(std::clamp(d0, 4.5, 8.0)), squares_(points.size()) {}

  void run() {
    const size_t count = points_.size(), shortest = std::min<size_t>(4, count);
    constexpr int kLevels = 6;
    for (int level = 0; level < kLevels; ++level) {
      const size_t length = level + 1 == kLevels ? shortest : std::max(count >> level, shortest);
      for (size_t begin = 0; begin + length <= count; ++begin) try_fragment(begin, length);
      if (length == shortest) break;
    }
  }

  double best_sum() const { return best_sum_; }
  /// Returns the largest number of pairs within each distance of GDT-TS.
  const std::array<int64_t, 4>& best_counts() const { return best_counts_; }

 private:
  void try_fragment(size_t begin, size_t length) {
    superpose_and_score(points_.subspan(begin, length), truth_.subspan(begin, length));
    std::vector<size_t> chosen = near_pairs(search_ - 1), next;
    constexpr int kRounds = 20;
    for (int round = 0; round < kRounds; ++round) {
      chosen_points_.clear();
      chosen_truth_.clear();
      for (const size_t i : chosen) {
        chosen_points_.push_back(points_[i]);
        chosen_truth_.push_back(truth_[i]);
      }
      superpose_and_score(chosen_points_, chosen_truth_);
      next = near_pairs(search_ + 1);
      if (next == chosen) return;
      chosen.swap(next);
    }
  }

  /// Scores the superposition of some pairs on all pairs, and keeps their squared distances.
  void superpose_and_score(std::span<const Point> from, std::span<const Point> to) {
    const Frame transform = superpose(from, to).transform;
    double sum = 0;
    std::array<int64_t, 4> counts{};
    for (size_t i = 0; i < points_.size(); ++i) {
      const Point apart = transform.apply(points_[i]) - truth_[i];
      squares_[i] = dot(apart, apart);
      sum += 1 / (1 + squares_[i] / (d0_ * d0_));
      for (size_t k = 0; k < counts.size(); ++k)
        counts[k] += squares_[i] <= kGdtDistances[k] * kGdtDistances[k] ? 1 : 0;
    }
    best_sum_ = std::max(best_sum_, sum);
    for (size_t k = 0; k < counts.size(); ++k) best_counts_[k] = std::max(best_counts_[k], counts[k]);
  }

  /// Returns the pairs nearer than `limit`. A superposition needs three, so the limit grows by steps of half an
  /// Angstrom until there are as many.
  std::vector<size_t> near_pairs(double limit) {
    constexpr double kStep = .5;
    const size_t least = std::min<size_t>(3, squares_.size());
    std::vector<size_t> pairs = pairs_within(limit);
    if (pairs.size() >= least) return pairs;
    sorted_ = squares_;
    std::nth_element(sorted_.begin(), sorted_.begin() + static_cast<int64_t>(least) - 1, sorted_.end());
    const double needed = std::sqrt(sorted_[least - 1]);
    return pairs_within(limit + kStep * (std::floor((needed - limit) / kStep) + 1));
  }

  std::vector<size_t> pairs_within(double limit) const {
    std::vector<size_t> pairs;
    for (size_t i = 0; i < squares_.size(); ++i)
      if (squares_[i] < limit * limit) pairs.push_back(i);
    return pairs;
  }

  std::span<const Point> points_, truth_;
  double d0_, search_;
  std::vector<double> squares_, sorted_;
  std::vector<Point> chosen_points_, chosen_truth_;
  double best_sum_ = 0;
  std::array<int64_t, 4> best_counts_{};
};

void add_chain(const StructureChain& chain, CaTrace& trace) {
  for (const StructureResidue& residue : chain.residues) {
    trace.letters += letter_of_type(residue.type);
    const auto ca = std::find_if(residue.atoms.begin(), residue.atoms.end(),
                                 [](const StructureAtom& atom) { return atom.atom == kAtomCa; });
    trace.atoms.push_back(ca == residue.atoms.end() ? std::nullopt : std::optional(ca->position));
  }
}

}  // namespace

CaTrace ca_trace(const Structure& structure) {
  CaTrace trace;
  for (const StructureChain& chain : structure.chains) add_chain(chain, trace);
  return trace;
}

CaTrace ca_trace(const StructureChain& chain) {
  CaTrace trace;
  add_chain(chain, trace);
  return trace;
}

Lddt lddt(std::span<const std::optional<Point>> points, std::span<const Point> truth, double cutoff) {
  require(points.size() == truth.size(), "compare", "points and truth must be as many: got ", points.size(), " and ",
          truth.size());
  Lddt result{std::vector<double>(truth.size(), 1), 1};
  int64_t all_kept = 0, all_pairs = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    int64_t kept = 0, pairs = 0;
    for (size_t j = 0; j < truth.size(); ++j) {
      const double wanted = distance(truth[i], truth[j]);
      if (i == j || wanted >= cutoff) continue;
      ++pairs;
      if (!points[i] || !points[j]) continue;
      const double error = std::abs(distance(*points[i], *points[j]) - wanted);
      for (const double tolerance : kLddtTolerances) kept += error < tolerance ? 1 : 0;
    }
    if (pairs > 0) result.residues[i] = static_cast<double>(kept) / (4.0 * static_cast<double>(pairs));
    all_kept += kept;
    all_pairs += pairs;
  }
  if (all_pairs > 0) result.all = static_cast<double>(all_kept) / (4.0 * static_cast<double>(all_pairs));
  return result;
}

double tm_d0(int64_t residues) {
  return std::max(.5, 1.24 * std::cbrt(static_cast<double>(std::max<int64_t>(residues, 19) - 15)) - 1.8);
}

TmScores tm_scores(std::span<const Point> points, std::span<const Point> truth, int64_t residues) {
  require(!points.empty() && points.size() == truth.size(), "compare",
          "points and truth must be as many, at least one: got ", points.size(), " and ", truth.size());
  const auto is_usable = [](const Point& point) { return norm(point) < kFarthest; };
  require(std::all_of(points.begin(), points.end(), is_usable) && std::all_of(truth.begin(), truth.end(), is_usable),
          "compare",
          "positions must be finite and less than 1e9 Angstrom from the origin; look at the structures' files");
  SuperpositionSearch search(points, truth, tm_d0(residues));
  search.run();
  const auto length = static_cast<double>(residues);
  TmScores scores{search.best_sum() / length, 0};
  for (const int64_t count : search.best_counts()) scores.gdt_ts += static_cast<double>(count) / (4 * length);
  return scores;
}

Comparison compare(const CaTrace& structure, const CaTrace& reference) {
  std::vector<Point> truth, points, true_points;  // all of the reference; the pairs
  std::vector<std::optional<Point>> found(reference.atoms.size()), known;
  for (const auto& [a, b] : align_sequences(structure.letters, reference.letters))
    found[static_cast<size_t>(b)] = structure.atoms[static_cast<size_t>(a)];
  for (size_t i = 0; i < reference.atoms.size(); ++i) {
    if (!reference.atoms[i]) continue;
    truth.push_back(*reference.atoms[i]);
    known.push_back(found[i]);
    if (!found[i]) continue;
    points.push_back(*found[i]);
    true_points.push_back(*reference.atoms[i]);
  }
  constexpr size_t kFewest = 3;
  require(points.size() >= kFewest, "compare",
          "two structures must have at least 3 aligned residues with a CA in both: got ", points.size(),
          "; compare structures of one protein");
  const TmScores scores = tm_scores(points, true_points, static_cast<int64_t>(truth.size()));
  return {static_cast<int64_t>(points.size()), superpose(points, true_points).rmsd, lddt(known, truth).all, scores.tm,
          scores.gdt_ts};
}

}  // namespace colossal::protein
