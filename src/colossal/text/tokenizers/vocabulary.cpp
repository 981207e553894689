#include "colossal/text/tokenizers/vocabulary.h"

#include <algorithm>
#include <iterator>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/unicode.h"

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

std::string byte_token(int byte) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

ByteTokens::ByteTokens(const Vocabulary& vocabulary) {
  for (int byte = 0; byte < 256; ++byte) ids[byte] = vocabulary.id_of(byte_token(byte));
}

bool ByteTokens::append(std::string_view text, std::vector<int64_t>& out) const {
  const auto id = [&](char c) { return ids[static_cast<unsigned char>(c)]; };
  if (!std::all_of(text.begin(), text.end(), [&](char c) { return id(c) >= 0; })) return false;
  for (const char c : text) out.push_back(id(c));
  return true;
}

int ByteTokens::byte_of(int64_t id) const {
  const auto* found = std::find(std::begin(ids), std::end(ids), id);
  return id < 0 || found == std::end(ids) ? -1 : static_cast<int>(found - ids);
}

int32_t PieceTrie::child(int32_t node, unsigned char byte) const {
  const std::vector<Edge>& edges = nodes_[node].edges;
  const auto found = std::lower_bound(edges.begin(), edges.end(), byte,
                                      [](const Edge& edge, unsigned char b) { return edge.byte < b; });
  return found == edges.end() || found->byte != byte ? -1 : found->node;
}

void PieceTrie::add(std::string_view key, int32_t value) {
  int32_t node = 0;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t next = child(node, byte);
    if (next < 0) {
      require(nodes_.size() < max_nodes_, "tokenizer",
              "the pieces of the vocabulary are too long: a tree of them must have ", "at most ", max_nodes_, " nodes");
      next = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      std::vector<Edge>& edges = nodes_[node].edges;
      edges.insert(std::lower_bound(edges.begin(), edges.end(), byte,
                                    [](const Edge& edge, unsigned char b) { return edge.byte < b; }),
                   {byte, next});
    }
    node = next;
  }
  nodes_[node].value = value;
}

std::vector<size_t> WordModel::places(std::string_view word, const int64_t* ids, size_t count) const {
  std::vector<size_t> places;
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const std::string part = part_of_word(ids[i], i == 0, i + 1 == count);
    size_t length = part.size();
    if (length == 0 && at < word.size()) length = first_character(word.substr(at)).length;
    // Known tokens have none of the characters before them that are dropped or belong to an unknown token.
    const size_t found = part.empty() ? at : word.find(part, at);
    if (found != std::string_view::npos) at = found;
    places.push_back(std::min(at, word.size()));
    at = std::min(at + length, word.size());
  }
  return places;
}

}  // namespace colossal::text
