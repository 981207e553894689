#include "colossal/text/training/seed_pieces.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "colossal/base/error.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

constexpr char32_t kEnd = 0;  // terminates each word in the joined text; a word that contains it is split there

std::u32string joined(const std::vector<CountedWord>& words) {
  std::u32string all;
  for (const CountedWord& word : words) {
    for (std::string_view rest = word.text; !rest.empty();) {
      const CodePoint character = first_code_point(rest);
      rest.remove_prefix(character.length);
      all.push_back(character.value);
    }
    all.push_back(kEnd);
  }
  require(all.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()), "tokenizer",
          "the words must have fewer than 2^31 characters: got ", all.size(), "; learn from fewer texts");
  return all;
}

std::string utf8_of(std::u32string_view characters) {
  std::string text;
  for (const char32_t c : characters) append_utf8(text, c);
  return text;
}

struct PieceCandidate {
  uint64_t score;
  std::u32string_view text;
};

/// The suffixes of the words by their positions, in alphabetical order, so suffixes with a common start are neighbours.
class SortedSuffixes {
 public:
  SortedSuffixes(const std::u32string& all, size_t longest) : all_(all), longest_(longest) {
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i] != kEnd) places_.push_back(static_cast<int32_t>(i));
    std::sort(places_.begin(), places_.end(), [&](int32_t a, int32_t b) { return beginning(a) < beginning(b); });
  }

  /// Calls found(string, places) for each string of at most `longest` characters within a word that is followed by at
  /// least two different characters.
  template <class Found>
  void branching(const Found& found) const {
    struct Open {
      size_t length, first;
    };
    std::vector<Open> open;  // strings at the start of the last suffix that are not closed, the longest last
    for (size_t i = 1; i <= places_.size(); ++i) {
      const size_t common = i < places_.size() ? common_length(places_[i - 1], places_[i]) : 0;
      size_t first = i - 1;
      while (!open.empty() && open.back().length > common) {
        const Open closed = open.back();
        open.pop_back();
        first = closed.first;
        const std::u32string_view text(all_.data() + places_[closed.first], closed.length);
        if (closed.length <= longest_ && text.back() != kEnd) found(text, i - closed.first);
      }
      if (common > 0 && (open.empty() || open.back().length < common)) open.push_back({common, first});
    }
  }

 private:
  /// Returns the characters of a suffix that the sort compares: up to the end of its word, and one more than `longest`,
  /// so that the character after the longest string counts.
  std::u32string_view beginning(int32_t place) const {
    const std::u32string_view rest = std::u32string_view(all_).substr(place, longest_ + 1);
    return rest.substr(0, rest.find(kEnd) == rest.npos ? rest.size() : rest.find(kEnd) + 1);
  }
  size_t common_length(int32_t a, int32_t b) const {
    const std::u32string_view x = beginning(a), y = beginning(b);
    return std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first - x.begin();
  }

  const std::u32string& all_;
  size_t longest_;
  std::vector<int32_t> places_;
};

}  // namespace

std::set<std::string> characters_of(const std::vector<CountedWord>& words) {
  const std::u32string all = joined(words);
  std::set<std::string> characters;
  for (const char32_t c : std::set<char32_t>(all.begin(), all.end()))
    if (c != kEnd) characters.insert(utf8_of({&c, 1}));
  return characters;
}

std::vector<std::pair<std::string, double>> seed_pieces(const std::vector<CountedWord>& words, int64_t longest,
                                                        int64_t max) {
  std::map<char32_t, int64_t> counts;
  for (const CountedWord& word : words)
    for (const char32_t c : joined({word}))
      if (c != kEnd) counts[c] += word.count;
  std::vector<std::pair<int64_t, char32_t>> characters;
  for (const auto& [character, count] : counts) characters.emplace_back(count, character);
  std::sort(characters.rbegin(), characters.rend());
  const std::u32string all = joined(words);
  std::vector<PieceCandidate> strings;
  SortedSuffixes(all, static_cast<size_t>(longest)).branching([&](std::u32string_view text, size_t places) {
    if (text.size() > 1) strings.push_back({places * text.size(), text});
  });
  std::sort(strings.begin(), strings.end(), [](const PieceCandidate& a, const PieceCandidate& b) {
    return a.score != b.score ? a.score > b.score : a.text > b.text;
  });
  std::vector<std::pair<std::string, double>> pieces;
  for (const auto& [count, character] : characters)
    pieces.emplace_back(utf8_of({&character, 1}), static_cast<double>(count));
  for (const PieceCandidate& string : strings) {
    if (static_cast<int64_t>(pieces.size()) >= max) break;
    pieces.emplace_back(utf8_of(string.text), static_cast<double>(string.score));
  }
  double sum = 0;
  for (const auto& [piece, score] : pieces) sum += score;
  for (auto& [piece, score] : pieces) score = std::log(score) - std::log(sum);
  return pieces;
}

}  // namespace colossal::text
