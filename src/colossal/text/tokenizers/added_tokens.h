// Added tokens: tokens that are found in a text before it is normalized or split, e.g. "<|endoftext|>" and "<s>".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/text/tokenizers/vocabulary.h"

namespace colossal::text {

/// One row of "added_tokens" in a tokenizer.json.
struct AddedToken {
  std::string content;
  int32_t id;
  bool is_special = false;                         ///< decodes to an empty text
  bool strips_left = false, strips_right = false;  ///< the token includes the white space before or after it
  bool is_single_word = false;                     ///< matches only if no word character is adjacent
  bool is_normalized = false;                      ///< searched in normalized text, after its own content is normalized
};

/// A set of added tokens that can be searched in a text.
/// Thread safety: const members may be called from several threads.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);
  struct Piece {
    std::string_view text;
    int32_t id;  ///< id of an added token; -1 = ordinary text
  };
  /// Splits the text into pieces, in order. If several tokens match at one position, the longest is taken.
  /// Cost: O(n m) for n bytes of text and tokens of at most m bytes.
  std::vector<Piece> cut(std::string_view text) const;
  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* at(std::string_view text) const;
  std::vector<AddedToken> tokens_;
  PieceTrie trie_;
  bool starts_[256] = {};  // true if a token starts with this byte
};

}  // namespace colossal::text
