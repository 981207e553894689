// Tokens that are found in text before anything else is done to it: "<|endoftext|>", "<s>".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::text {

struct AddedToken {
  std::string content;
  int32_t id;
  bool is_special;                 ///< decodes to nothing
  bool strips_left, strips_right;  ///< takes the white space before or behind it along
};

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);
  struct Piece {
    std::string_view text;
    int32_t id;  ///< of an added token; -1: ordinary text
  };
  /// The text in order, without empty pieces. Where several tokens fit, the longest is taken.
  std::vector<Piece> cut(std::string_view text) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  /// -1: none of that content.
  int64_t id_of(const std::string& content) const;

 private:
  const AddedToken* at(std::string_view text) const;
  std::vector<AddedToken> tokens_;  // longest first
  bool starts_[256] = {};           // some token starts with this byte
};

}  // namespace colossal::text
