#include "colossal/text/tokenizers/byte.h"

#include "colossal/base/error.h"

namespace colossal::text {

std::vector<int64_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string ByteTokenizer::piece(int64_t id) const {
  require(id >= 0 && id <= kEnd, "tokenizer", "a byte token must be in [0, 256]: got ", id);
  return id == kEnd ? "" : std::string(1, static_cast<char>(id));
}

}  // namespace colossal::text
