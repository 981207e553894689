#include "colossal/text/tokenizers/charsmap.h"

#include <cstring>

#include "colossal/base/error.h"

namespace colossal::text {
namespace {

// Fields of one unit of the double array. See: https://github.com/s-yata/darts-clone.
bool has_leaf(uint32_t unit) { return unit >> 8 & 1; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FF; }
constexpr size_t kMaxValueBytes = 1024;  // bytes; NFKC needs 33. The limit bounds the output, because each character of
                                         // a text may be replaced

uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

}  // namespace

Charsmap::Charsmap(std::string_view bytes) {
  if (bytes.empty()) return;
  uint32_t size = 0;
  require(bytes.size() > sizeof size, "tokenizer", "the precompiled character map ends within its head");
  std::memcpy(&size, bytes.data(), sizeof size);
  bytes.remove_prefix(sizeof size);
  require(size % 4 == 0 && size >= 4 && size <= bytes.size(), "tokenizer",
          "the trie of the precompiled character map must fit in its ", bytes.size(), " bytes: got ", size);
  units_.resize(size / 4);
  std::memcpy(units_.data(), bytes.data(), size);
  values_ = bytes.substr(size);
  require(values_.empty() || values_.back() == '\0', "tokenizer",
          "the precompiled character map ends within a replacement");
  for (size_t begin = 0, end; begin < values_.size(); begin = end + 1) {
    end = values_.find('\0', begin);
    require(end - begin <= kMaxValueBytes, "tokenizer", "a replacement of the precompiled character map must be of at ",
            "most ", kMaxValueBytes, " bytes: got ", end - begin);
  }
}

std::string_view Charsmap::value_at(uint32_t offset) const {
  if (offset >= values_.size()) return {};
  return std::string_view(values_).substr(offset, values_.find('\0', offset) - offset);
}

/// Calls found(length, offset) for each prefix of `text` that is in the trie, until it returns false.
template <class Found>
void Charsmap::prefixes(std::string_view text, const Found& found) const {
  if (empty()) return;
  size_t at = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    if (byte == 0 || at >= units_.size() || label_of(units_[at]) != byte) return;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (has_leaf(unit) && (at >= units_.size() || !found(i + 1, value_of(units_[at])))) return;
  }
}

std::optional<Charsmap::Rule> Charsmap::shortest(std::string_view text) const {
  std::optional<Rule> rule;
  prefixes(text, [&](size_t length, uint32_t offset) {
    rule = {length, value_at(offset)};
    return false;
  });
  return rule;
}

std::optional<Charsmap::Rule> Charsmap::longest(std::string_view text) const {
  size_t length = 0;
  uint32_t offset = 0;
  prefixes(text, [&](size_t next, uint32_t value) {
    length = next;
    offset = value;
    return true;
  });
  if (length == 0) return std::nullopt;
  return Rule{length, value_at(offset)};
}

}  // namespace colossal::text
