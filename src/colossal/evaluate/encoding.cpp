#include "colossal/evaluate/encoding.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/text/unicode.h"

namespace colossal::evaluate {

Encoder::Encoder(const text::Tokenizer& tokenizer, std::optional<bool> adds_begin)
    : tokenizer_(tokenizer),
      adds_begin_(adds_begin),
      prefix_(tokenizer.begin_id() >= 0 ? tokenizer.begin_id() : tokenizer.end_id()) {
  require(!adds_begin.value_or(false) || tokenizer.begin_id() >= 0, "evaluate",
          "the tokenizer must have a begin token that can be added: got none; leave out --add-bos-token");
  if (prefix_ >= 0) prefix_text_ = tokenizer.spelling(prefix_);
}

std::vector<int64_t> Encoder::encode(const std::string& text) const {
  const bool has_prefix = !prefix_text_.empty() && text.starts_with(prefix_text_);
  if (has_prefix || !adds_begin_.value_or(true)) return tokenizer_.encode(text);
  std::vector<int64_t> ids = tokenizer_.encode_prompt(text);
  const int64_t begin = tokenizer_.begin_id();
  if (adds_begin_ && (ids.empty() || ids.front() != begin)) ids.insert(ids.begin(), begin);
  return ids;
}

int64_t Encoder::prefix() const {
  require(prefix_ >= 0, "evaluate",
          "the tokenizer must have a begin or an end token, which stands before a text without context: got neither");
  return prefix_;
}

Pair Encoder::pair(const std::string& context, const std::string& continuation) {
  const std::string kept = context.substr(0, text::size_without_space(context));
  const std::string moved = context.substr(kept.size()) + continuation;
  Pair pair;
  if (kept.empty()) {
    pair = {{prefix()}, tokenizer_.encode(moved)};
    if (pair.continuation.size() > 1 && pair.continuation.front() == prefix_)
      pair.continuation.erase(pair.continuation.begin());
  } else {
    pair.context = encode(kept);
    std::vector<int64_t> whole = encode(kept + moved);
    if (whole.size() > pair.context.size()) {
      pair.continuation.assign(whole.begin() + static_cast<std::ptrdiff_t>(pair.context.size()), whole.end());
    } else {
      pair.continuation = tokenizer_.encode(moved);
      ++apart_;
    }
  }
  require(!pair.continuation.empty(), "evaluate", "a text to score must have at least one token: got \"", moved, "\"");
  if (pair.context.empty()) pair.context = {prefix()};
  return pair;
}

Pair fitted(Pair pair, int64_t max_length) {
  const auto cut = [](std::vector<int64_t>& ids, int64_t count) {
    if (count > 0) ids.erase(ids.begin(), ids.begin() + count);
  };
  cut(pair.continuation, static_cast<int64_t>(pair.continuation.size()) - max_length);
  const int64_t room = max_length + 1 - static_cast<int64_t>(pair.continuation.size());
  cut(pair.context, static_cast<int64_t>(pair.context.size()) - room);
  return pair;
}

std::vector<Pair> rolling_windows(const std::vector<int64_t>& ids, int64_t prefix, int64_t max_length) {
  std::vector<Pair> windows;
  const auto size = static_cast<int64_t>(ids.size());
  for (int64_t begin = 0; begin < size;) {
    const int64_t end = std::min(begin + max_length, size);
    // The last window is as long as the others, so that its first token has context, too.
    const int64_t read = begin == 0 ? 0 : std::max<int64_t>(end - max_length - 1, 0);
    Pair window{{ids.begin() + read, ids.begin() + begin}, {ids.begin() + begin, ids.begin() + end}};
    if (begin == 0) window.context = {prefix};
    windows.push_back(std::move(window));
    begin = end;
  }
  return windows;
}

}  // namespace colossal::evaluate
