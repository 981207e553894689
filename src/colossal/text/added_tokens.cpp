#include "colossal/text/added_tokens.h"

#include <algorithm>

namespace colossal::text {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (const AddedToken& token : tokens_) starts_[static_cast<unsigned char>(token.content[0])] = true;
}

const AddedToken* AddedTokens::at(std::string_view text) const {
  if (!starts_[static_cast<unsigned char>(text[0])]) return nullptr;
  for (const AddedToken& token : tokens_)
    if (text.substr(0, token.content.size()) == token.content) return &token;
  return nullptr;
}

std::vector<AddedTokens::Piece> AddedTokens::cut(std::string_view text) const {
  std::vector<Piece> pieces;
  size_t start = 0, i = 0;
  while (i < text.size()) {
    const AddedToken* token = at(text.substr(i));
    if (!token) {
      ++i;
      continue;
    }
    size_t end = i;
    while (token->strips_left && end > start && is_space(text[end - 1])) --end;
    if (end > start) pieces.push_back({text.substr(start, end - start), -1});
    pieces.push_back({text.substr(i, token->content.size()), token->id});
    i += token->content.size();
    while (token->strips_right && i < text.size() && is_space(text[i])) ++i;
    start = i;
  }
  if (start < text.size()) pieces.push_back({text.substr(start), -1});
  return pieces;
}

int64_t AddedTokens::id_of(const std::string& content) const {
  for (const AddedToken& token : tokens_)
    if (token.content == content) return token.id;
  return -1;
}

}  // namespace colossal::text
