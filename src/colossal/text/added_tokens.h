// Tokens that are found in text before anything else is done to it: "<|endoftext|>", "<s>".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/text/piece_trie.h"

namespace colossal::text {

struct AddedToken {
  std::string content;
  int32_t id;
  bool is_special = false;                         ///< decodes to nothing
  bool strips_left = false, strips_right = false;  ///< takes the white space before or behind it along
  bool is_single_word = false;                     ///< not found where a character of a word stands before or behind it
  bool is_normalized = false;                      ///< sought in normalized text, and normalized itself
};

/// Some tokens, sought in a text.
/// Thread safety: const members may be called from several threads.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);
  struct Piece {
    std::string_view text;
    int32_t id;  ///< of an added token; -1: ordinary text
  };
  /// The text in order. Where several tokens start at one place the longest is taken. Cost: O(n m) for n bytes and
  /// tokens of at most m.
  std::vector<Piece> cut(std::string_view text) const;
  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* at(std::string_view text) const;
  std::vector<AddedToken> tokens_;
  PieceTrie trie_;
  bool starts_[256] = {};  // some token starts with this byte
};

}  // namespace colossal::text
