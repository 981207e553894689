#include "colossal/text/fitted_encoding.h"

#include <algorithm>

namespace colossal::text {

FittedEncoding encode_fitted(const Tokenizer& tokenizer, std::string_view text, size_t max_tokens) {
  std::vector<int64_t> ids = tokenizer.encode_whole(text).ids;
  if (ids.size() <= max_tokens) return {std::move(ids), false};
  const size_t excess = ids.size() - max_tokens;
  const std::vector<int64_t> own = tokenizer.encode(text);
  const auto begin = std::search(ids.begin(), ids.end(), own.begin(), own.end());
  if (begin == ids.end() || own.size() < excess) {
    ids.resize(max_tokens);
  } else {
    const auto end = begin + static_cast<std::ptrdiff_t>(own.size());
    ids.erase(end - static_cast<std::ptrdiff_t>(excess), end);
  }
  return {std::move(ids), true};
}

}  // namespace colossal::text
