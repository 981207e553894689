#include "colossal/base/suggest.h"

#include <algorithm>

namespace colossal {
namespace {

std::string_view table_of(std::string_view key) { return key.substr(0, key.rfind('.') + 1); }
std::string_view name_of(std::string_view key) { return key.substr(key.rfind('.') + 1); }

/// Returns the first letters of the words of a name: "lr" of "learning_rate".
std::string initials_of(std::string_view name) {
  std::string initials;
  for (size_t i = 0; i < name.size(); ++i)
    if (i == 0 || name[i - 1] == '_') initials += name[i];
  return initials;
}

bool has_word(std::string_view name, std::string_view word) {
  return word.size() > 2 && ("_" + std::string(name) + "_").find("_" + std::string(word) + "_") != std::string::npos;
}

}  // namespace

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

std::string did_you_mean_key(std::string_view key, const std::vector<std::string>& candidates) {
  const std::string_view name = name_of(key);
  const auto suggested = [](std::string_view other) { return ", did you mean `" + std::string(other) + "`?"; };
  std::vector<std::string> others;  // the tables around the key are not what it misspells
  for (const std::string& other : candidates)
    if (!key.starts_with(other + ".")) others.push_back(other);
  const auto first = [&](const auto& is_meant) -> std::string {
    const auto found = std::find_if(others.begin(), others.end(), is_meant);
    return found == others.end() ? "" : suggested(*found);
  };
  const auto is_beside = [&](const std::string& other) { return table_of(other) == table_of(key); };
  const auto is_long_form = [&](const std::string& other) {
    return name.size() > 1 && is_beside(other) && initials_of(name_of(other)) == name;
  };
  if (const std::string long_form = first(is_long_form); !long_form.empty()) return long_form;
  const std::string with_word =
      first([&](const std::string& other) { return is_beside(other) && has_word(name_of(other), name); });
  if (!with_word.empty()) return with_word;
  if (const std::string near = closest(key, others); !near.empty()) return suggested(near);
  return first([&](const std::string& other) { return name_of(other) == name; });
}

}  // namespace colossal
