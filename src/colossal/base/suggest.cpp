#include "colossal/base/suggest.h"

#include <algorithm>

namespace colossal {

int edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment. Three rows of the table are enough; the oldest one serves swapped neighbours.
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string closest(std::string_view word, const std::vector<std::string>& candidates) {
  // Bytes. The limit bounds the cost, the product of both lengths, because the word may be from a hostile file.
  constexpr size_t kMaxWordLength = 256;
  if (word.size() > kMaxWordLength) return "";
  int nearest = std::max(2, static_cast<int>(word.size()) / 3) + 1;
  std::string best;
  for (const auto& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (distance < nearest && distance < static_cast<int>(std::max(word.size(), candidate.size()))) {
      nearest = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string best = closest(word, candidates);
  return best.empty() ? "" : ", did you mean `" + best + "`?";
}

}  // namespace colossal
