#include "colossal/protein/sequence_alignment.h"

#include <algorithm>
#include <array>

#include "colossal/base/error.h"

namespace colossal::protein {
namespace {

constexpr int32_t kEqual = 4, kDifferent = -1, kOpen = -5, kExtend = -1, kNever = INT32_MIN / 2;
/// What an alignment ends with: a pair, a residue of `a` alone, or one of `b` alone.
enum Ending : uint8_t { kPair = 0, kFirstAlone = 1, kSecondAlone = 2 };
using Scores = std::array<int32_t, 3>;  // by ending

int32_t score_of(char a, char b) {
  if (a == 'X' || b == 'X') return 0;
  return a == b ? kEqual : kDifferent;
}

/// Returns the ending with the best score, the first of equal ones.
Ending best_of(const Scores& scores) {
  return static_cast<Ending>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

/// Returns the scores before a step to `next`, less what the step costs.
Scores before_step(const Scores& scores, Ending next, bool is_at_end) {
  Scores stepped = scores;
  if (next == kPair) return stepped;
  for (size_t ending = 0; ending < 3; ++ending)
    stepped[ending] += is_at_end || ending == static_cast<size_t>(next) ? kExtend : kOpen;
  return stepped;
}

/// The endings from which each ending of a cell is reached, two bits each.
class Steps {
 public:
  Steps(size_t rows, size_t columns) : columns_(columns), cells_(rows * columns) {}
  void set(size_t row, size_t column, Ending ending, Ending before) {
    cells_[row * columns_ + column] |= static_cast<uint8_t>(before << (2 * ending));
  }
  Ending before(size_t row, size_t column, Ending ending) const {
    return static_cast<Ending>((cells_[row * columns_ + column] >> (2 * ending)) & 3);
  }

 private:
  size_t columns_;
  std::vector<uint8_t> cells_;
};

/// Returns the ending of the best alignment, and fills the steps to it.
Ending fill_steps(std::string_view a, std::string_view b, Steps& steps) {
  std::vector<Scores> last(b.size() + 1), current(b.size() + 1);
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      Scores& cell = current[j] = {kNever, kNever, kNever};
      if (i == 0 && j == 0) cell[kPair] = 0;
      const auto reach = [&](Ending ending, const Scores& from, bool is_at_end, int32_t gain) {
        const Scores stepped = before_step(from, ending, is_at_end);
        const Ending before = best_of(stepped);
        cell[ending] = std::max(stepped[before] + gain, kNever);
        steps.set(i, j, ending, before);
      };
      if (i > 0 && j > 0) reach(kPair, last[j - 1], false, score_of(a[i - 1], b[j - 1]));
      if (i > 0) reach(kFirstAlone, last[j], j == 0 || j == b.size(), 0);
      if (j > 0) reach(kSecondAlone, current[j - 1], i == 0 || i == a.size(), 0);
    }
    std::swap(last, current);
  }
  return best_of(last[b.size()]);
}

}  // namespace

std::vector<std::pair<int64_t, int64_t>> align_sequences(std::string_view a, std::string_view b) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  if (a == b) {
    for (size_t i = 0; i < a.size(); ++i) pairs.emplace_back(i, i);
    return pairs;
  }
  constexpr size_t kMaxCells = size_t{1} << 32;
  require((a.size() + 1) <= kMaxCells / (b.size() + 1), "protein",
          "sequences to align must have at most 2^32 pairs of residues: got ", a.size(), " and ", b.size(),
          " residues");
  Steps steps(a.size() + 1, b.size() + 1);
  Ending ending = fill_steps(a, b, steps);
  for (size_t i = a.size(), j = b.size(); i > 0 || j > 0;) {
    const Ending before = steps.before(i, j, ending);
    if (ending == kPair) pairs.emplace_back(i - 1, j - 1);
    if (ending != kSecondAlone) --i;
    if (ending != kFirstAlone) --j;
    ending = before;
  }
  std::reverse(pairs.begin(), pairs.end());
  return pairs;
}

}  // namespace colossal::protein
