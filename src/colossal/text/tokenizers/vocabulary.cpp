#include "colossal/text/tokenizers/vocabulary.h"

#include <algorithm>
#include <cstdio>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::text {

Vocabulary::Vocabulary(size_t tokens)
    : limit_(std::min<int64_t>(kMaxId, 16 * static_cast<int64_t>(tokens) + (1 << 16))) {}

void Vocabulary::add(const std::string& token, int64_t id) {
  require(id >= 0 && id < limit_, "tokenizer", "the id of ", printable(token), " must be in [0, ", limit_, "): got ",
          id);
  ids_[token] = static_cast<int32_t>(id);
  if (size() <= id) tokens_.resize(id + 1);
  tokens_[id] = token;
  longest_ = std::max(longest_, token.size());
}

int32_t Vocabulary::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

const std::string& Vocabulary::token(int64_t id) const {
  static const std::string none;
  return id >= 0 && id < size() ? tokens_[id] : none;
}

ByteTokens::ByteTokens(const Vocabulary& vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    ids[byte] = vocabulary.id_of(name);
  }
}

bool ByteTokens::append(std::string_view text, std::vector<int64_t>& out) const {
  const auto id = [&](char c) { return ids[static_cast<unsigned char>(c)]; };
  if (!std::all_of(text.begin(), text.end(), [&](char c) { return id(c) >= 0; })) return false;
  for (const char c : text) out.push_back(id(c));
  return true;
}

}  // namespace colossal::text
