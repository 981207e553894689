#include "colossal/text/training/lattice.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kImpossible ? a : a + std::log1p(std::exp(b - a));
}

}  // namespace

void Lattice::read(std::string_view word, const PieceTrie& pieces, const std::vector<double>& scores, Unknown unknown) {
  size_ = word.size();
  edges_.clear();
  for (size_t begin = 0; begin < size_;) {
    const std::string_view rest = word.substr(begin);
    const size_t character = first_code_point(rest).length;
    const auto add = [&](size_t length, int32_t id, double score) {
      edges_.push_back({id, static_cast<uint32_t>(begin), static_cast<uint32_t>(begin + length), score});
    };
    bool has_character = false;
    pieces.prefixes(rest, [&](size_t length, int32_t id) {
      has_character = has_character || length == character;
      add(length, id, scores[id]);
    });
    if (!has_character) add(character, unknown.id, unknown.score);
    begin += character;
  }
}

std::vector<int32_t> Lattice::best(bool is_cut) const {
  std::vector<double> sums(size_ + 1, kImpossible);
  std::vector<const Edge*> last(size_ + 1, nullptr);
  sums[0] = 0;
  for (const Edge& edge : edges_) {
    if (is_cut && edge.begin == 0 && edge.end == size_) continue;
    const double sum = sums[edge.begin] + edge.score;
    if (sums[edge.begin] == kImpossible || (last[edge.end] && sum <= sums[edge.end])) continue;
    sums[edge.end] = sum;
    last[edge.end] = &edge;
  }
  std::vector<int32_t> ids;
  if (!last[size_]) return ids;
  for (size_t p = size_; p > 0; p = last[p]->begin) ids.push_back(last[p]->id);
  std::reverse(ids.begin(), ids.end());
  return ids;
}

double Lattice::add_expected(double count, std::vector<double>& expected) const {
  std::vector<double> forward(size_ + 1, kImpossible), backward(size_ + 1, kImpossible);
  forward[0] = backward[size_] = 0;
  for (const Edge& edge : edges_)
    if (forward[edge.begin] != kImpossible)
      forward[edge.end] = log_add(forward[edge.end], forward[edge.begin] + edge.score);
  for (auto edge = edges_.rbegin(); edge != edges_.rend(); ++edge)
    if (backward[edge->end] != kImpossible)
      backward[edge->begin] = log_add(backward[edge->begin], backward[edge->end] + edge->score);
  const double all = forward[size_];
  for (const Edge& edge : edges_)
    if (forward[edge.begin] != kImpossible && backward[edge.end] != kImpossible)
      expected[edge.id] += count * std::exp(forward[edge.begin] + edge.score + backward[edge.end] - all);
  return all;
}

}  // namespace colossal::text
