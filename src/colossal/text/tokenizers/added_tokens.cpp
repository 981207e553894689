#include "colossal/text/tokenizers/added_tokens.h"

#include <algorithm>

#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

/// Returns the number of bytes of the last character.
size_t last_length(std::string_view text) {
  size_t length = 1;
  while (length < text.size() && length < 4 && (static_cast<unsigned char>(text[text.size() - length]) & 0xC0) == 0x80)
    ++length;
  return length;
}

size_t spaces_behind(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint c = first_code_point(text.substr(at));
    if (!is_space(c.value)) break;
    at += c.length;
  }
  return at;
}

size_t spaces_before(std::string_view text) {
  size_t count = 0;
  while (count < text.size()) {
    const size_t length = last_length(text.substr(0, text.size() - count));
    if (!is_space(first_code_point(text.substr(text.size() - count - length)).value)) break;
    count += length;
  }
  return count;
}

bool stands_alone(std::string_view before, std::string_view behind) {
  const bool left =
      !before.empty() && is_word(first_code_point(before.substr(before.size() - last_length(before))).value);
  return !left && (behind.empty() || !is_word(first_code_point(behind).value));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    starts_[static_cast<unsigned char>(tokens_[i].content[0])] = true;
    trie_.add(tokens_[i].content, static_cast<int32_t>(i));
  }
}

const AddedToken* AddedTokens::at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  trie_.prefixes(text, [&](size_t, int32_t i) { longest = &tokens_[i]; });
  return longest;
}

std::vector<AddedTokens::Piece> AddedTokens::cut(std::string_view text) const {
  std::vector<Piece> pieces;
  size_t start = 0, blank_from = 0, blank_until = 0;  // range of the white space that the last token with strips_right
                                                      // took
  for (size_t i = 0; i < text.size() && !tokens_.empty();) {
    while (i < text.size() && !starts_[static_cast<unsigned char>(text[i])]) ++i;
    if (i == text.size()) break;
    const AddedToken* token = at(text.substr(i));
    if (!token) {
      ++i;
      continue;
    }
    size_t begin = i, end = i + token->content.size();
    i = end;  // as in the package, the search goes on here even if the token also takes the white space after it
    if (token->is_single_word && !stands_alone(text.substr(0, begin), text.substr(end))) continue;
    if (token->strips_left) begin = begin > start ? begin - spaces_before(text.substr(start, begin - start)) : start;
    if (token->strips_right) {  // the white space is scanned once, however many tokens share it
      if (end < blank_from || end > blank_until) {
        blank_from = end;
        blank_until = end + spaces_behind(text.substr(end));
      }
      end = blank_until;
    }
    if (begin > end) continue;
    if (start < begin) pieces.push_back({text.substr(start, begin - start), -1});
    if (begin < end) pieces.push_back({text.substr(begin, end - begin), token->id});  // else the last token took it
                                                                                      // took these bytes
    start = end;
  }
  if (start < text.size()) pieces.push_back({text.substr(start), -1});
  return pieces;
}

}  // namespace colossal::text
