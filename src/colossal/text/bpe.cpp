#include "colossal/text/bpe.h"

#include <algorithm>
#include <cstdio>
#include <queue>

#include "colossal/base/error.h"
#include "colossal/text/utf8.h"

namespace colossal::text {
namespace {

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

struct Candidate {  // two neighbours that may be joined
  int32_t rank, left, right, result;
  int64_t at;
  bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
};

struct Symbol {  // a word may be a whole text of more than 2^31 characters: SentencePiece cuts none
  int32_t id;
  int64_t previous, next;  // -1: none
};

}  // namespace

Bpe::Bpe(Vocabulary vocabulary, const std::vector<std::pair<std::string, std::string>>& merges, Options options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  const auto id = [&](const std::string& token) {
    const auto found = vocabulary_.find(token);
    require(found != vocabulary_.end(), "tokenizer", "a merge names ", token, ", which is not in the vocabulary");
    return found->second;
  };
  int32_t rank = 0;
  for (const auto& [left, right] : merges)
    merges_.emplace(key_of(id(left), id(right)), Merge{rank++, id(left + right)});
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    const auto found = vocabulary_.find(name);
    byte_ids_[byte] = found == vocabulary_.end() ? -1 : found->second;
  }
}

const Bpe::Merge* Bpe::merge_of(int32_t left, int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::add_bytes(std::string_view character, std::vector<int32_t>& out) const {
  const auto id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  const bool all =
      options_.byte_fallback && std::all_of(character.begin(), character.end(), [&](char c) { return id(c) >= 0; });
  if (all) {
    for (const char c : character) out.push_back(id(c));
  } else if (options_.unknown >= 0 && !(options_.fuse_unknown && !out.empty() && out.back() == options_.unknown)) {
    out.push_back(options_.unknown);
  }
}

std::vector<int32_t> Bpe::symbols(std::string_view word) const {
  std::vector<int32_t> out;
  for (size_t at = 0; at < word.size();) {
    const std::string_view character = word.substr(at, first_character(word.substr(at)).length);
    const auto found = vocabulary_.find(std::string(character));
    if (found != vocabulary_.end()) {
      out.push_back(found->second);
    } else {
      add_bytes(character, out);
    }
    at += character.size();
  }
  return out;
}

void Bpe::encode(std::string_view word, std::vector<int64_t>& ids) const {
  if (options_.ignore_merges) {
    const auto found = vocabulary_.find(std::string(word));
    if (found != vocabulary_.end()) return ids.push_back(found->second);
  }
  std::vector<Symbol> chain;
  for (int32_t id : symbols(word)) {
    const auto at = static_cast<int64_t>(chain.size());
    if (at > 0) chain.back().next = at;
    chain.push_back({id, at - 1, -1});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int64_t at) {
    if (at < 0 || chain[at].next < 0) return;
    const int32_t left = chain[at].id, right = chain[chain[at].next].id;
    if (const Merge* merge = merge_of(left, right)) queue.push({merge->rank, left, right, merge->result, at});
  };
  for (size_t at = 0; at < chain.size(); ++at) offer(static_cast<int64_t>(at));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = chain[best.at];
    if (left.id != best.left || left.next < 0 || chain[left.next].id != best.right) continue;  // one of them is gone
    Symbol& right = chain[left.next];
    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) chain[left.next].previous = best.at;
    offer(left.previous);
    offer(best.at);
  }
  if (chain.empty()) return;
  for (int64_t at = 0; at >= 0; at = chain[at].next) ids.push_back(chain[at].id);
}

}  // namespace colossal::text
