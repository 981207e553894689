#include "colossal/text/tokenizers/bpe.h"

#include <algorithm>
#include <queue>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

constexpr uint64_t kNoKey = ~uint64_t{0};
constexpr size_t kFew = 48;  // number of symbols up to which a scan of all pairs is faster than a queue

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

size_t place_of(uint64_t key, size_t slots) { return (key * 0x9E3779B97F4A7C15u >> 20) & (slots - 1); }

struct Candidate {  // two neighbouring symbols that may be joined
  int32_t rank, left, right, result;
  int64_t at;
  bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
};

}  // namespace

struct Bpe::Symbol {  // 64-bit links: SentencePiece does not split words, so a word may exceed 2^31 characters
  int32_t id;
  int64_t previous, next;  // -1 = none
};

Bpe::Bpe(Vocabulary vocabulary) : WordModel(std::move(vocabulary)), byte_tokens_(vocabulary_) {}

Bpe::Bpe(Vocabulary vocabulary, const Merges& merges, Options options) : Bpe(std::move(vocabulary)) {
  options_ = std::move(options);
  const auto id = [&](const std::string& token) {
    const int32_t found = vocabulary_.id_of(token);
    require(found >= 0, "tokenizer", "a merge names ", printable(token), ", which is not in the vocabulary");
    return found;
  };
  reserve_merges(merges.size());
  int32_t rank = 0;
  for (const auto& [left, right] : merges) {
    require(right.size() >= options_.prefix.size(), "tokenizer", "the second token of the merge ", printable(left), " ",
            printable(right), " must start with the continuing_subword_prefix");
    add_merge(id(left), id(right), {rank++, id(left + right.substr(options_.prefix.size()))});
  }
  if (!options_.unknown.empty()) {
    unknown_ = vocabulary_.id_of(options_.unknown);
    require(unknown_ >= 0, "tokenizer", "unk_token ", printable(options_.unknown), " is not in the vocabulary");
  }
  if (!options_.bytes) {
    symbols_ = vocabulary_.ids();
    return;
  }
  for (const auto& [token, number] : vocabulary_.ids())
    if (is_byte_alphabet(token)) symbols_[from_byte_alphabet(token)] = number;
  fill_byte_ids();
}

Bpe Bpe::of_ranks(Vocabulary vocabulary) {
  Bpe bpe(std::move(vocabulary));
  bpe.options_.bytes = bpe.options_.ignore_merges = true;
  bpe.symbols_ = bpe.vocabulary_.ids();
  bpe.fill_byte_ids();
  for (int byte = 0; byte < 256; ++byte)
    require(bpe.byte_symbols_[byte] >= 0, "tokenizer", "the byte ", byte, " must have a rank");
  std::vector<std::pair<uint64_t, int32_t>> merges;
  for (const auto& [token, id] : bpe.symbols_) {
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const int32_t left = bpe.symbol_id(std::string_view(token).substr(0, cut));
      const int32_t right = left < 0 ? -1 : bpe.symbol_id(std::string_view(token).substr(cut));
      if (right >= 0) merges.emplace_back(key_of(left, right), id);
    }
  }
  bpe.reserve_merges(merges.size());
  for (const auto& [key, id] : merges)
    bpe.add_merge(static_cast<int32_t>(key >> 32), static_cast<int32_t>(key), {id, id});
  return bpe;
}

void Bpe::fill_byte_ids() {
  for (int byte = 0; byte < 256; ++byte) byte_symbols_[byte] = symbol_id(std::string(1, static_cast<char>(byte)));
}

void Bpe::reserve_merges(size_t count) {
  size_t slots = 16;
  while (slots < 2 * count) slots *= 2;
  merges_.assign(slots, {kNoKey, {}});
}

void Bpe::add_merge(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t at = place_of(key, merges_.size());
  while (merges_[at].key != kNoKey && merges_[at].key != key) at = (at + 1) & (merges_.size() - 1);
  merges_[at] = {key, merge};
}

const Bpe::Merge* Bpe::merge_of(int32_t left, int32_t right) const {
  const uint64_t key = key_of(left, right);
  for (size_t at = place_of(key, merges_.size());; at = (at + 1) & (merges_.size() - 1)) {
    if (merges_[at].key == key) return &merges_[at].merge;
    if (merges_[at].key == kNoKey) return nullptr;
  }
}

int32_t Bpe::symbol_id(std::string_view symbol) const {
  const auto found = symbols_.find(symbol);
  return found == symbols_.end() ? -1 : found->second;
}

/// Appends the ids that merging starts from. An unknown character is held back until the next known one, as the package
/// does, so byte tokens between the two are placed before it.
void Bpe::start(std::string_view word, std::vector<int32_t>& out) const {
  bool unknown = false;
  std::string spelled;
  std::vector<int64_t> bytes;
  for (size_t at = 0; at < word.size();) {
    const size_t length = options_.bytes ? 1 : first_character(word.substr(at)).length;
    std::string_view symbol = word.substr(at, length);
    const bool prefixed = at > 0 && !options_.prefix.empty();
    at += length;
    const bool closed = at == word.size() && !options_.suffix.empty();
    if (prefixed || closed) {
      spelled.assign(prefixed ? options_.prefix : "").append(symbol).append(closed ? options_.suffix : "");
      symbol = spelled;
    }
    const int32_t id = options_.bytes && !prefixed && !closed ? byte_symbols_[static_cast<unsigned char>(symbol[0])]
                                                              : symbol_id(symbol);
    if (id >= 0) {
      if (unknown) out.push_back(unknown_);
      unknown = false;
      out.push_back(id);
      continue;
    }
    bytes.clear();
    if (options_.byte_fallback && byte_tokens_.append(symbol, bytes)) {
      out.insert(out.end(), bytes.begin(), bytes.end());
    } else if (unknown_ >= 0) {
      if (unknown && !options_.fuse_unknown) out.push_back(unknown_);
      unknown = true;
    }
  }
  if (unknown) out.push_back(unknown_);
}

void Bpe::encode(std::string_view word, std::vector<int64_t>& ids) const {
  if (options_.ignore_merges) {
    const int32_t whole = symbol_id(word);
    if (whole >= 0) return ids.push_back(whole);
  }
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  start(word, symbols);
  symbols.size() <= kFew ? join_few(symbols) : join_many(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

std::string Bpe::part_of_word(int64_t id, bool is_first, bool is_last) const {
  const std::string& token = vocabulary_.token(id);
  if (id == unknown_) return "";
  const int byte = options_.byte_fallback ? byte_tokens_.byte_of(id) : -1;
  if (byte >= 0) return std::string(1, static_cast<char>(byte));
  std::string_view part = token;
  if (!is_first && part.starts_with(options_.prefix)) part.remove_prefix(options_.prefix.size());
  if (is_last && part.ends_with(options_.suffix)) part.remove_suffix(options_.suffix.size());
  return options_.bytes ? from_byte_alphabet(part) : std::string(part);
}

/// Each round scans all pairs. The merges found are kept between rounds, because a join changes at most two of them.
void Bpe::join_few(std::vector<int32_t>& symbols) const {
  size_t count = symbols.size();
  if (count < 2) return;
  const Merge* merges[kFew];
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = merge_of(symbols[i], symbols[i + 1]);
  while (true) {
    size_t best = count;
    for (size_t i = 0; i + 1 < count; ++i)
      if (merges[i] && (best == count || merges[i]->rank < merges[best]->rank)) best = i;
    if (best == count) break;
    symbols[best] = merges[best]->result;
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              symbols.begin() + static_cast<std::ptrdiff_t>(count),
              symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    for (size_t i = best + 1; i + 2 < count; ++i) merges[i] = merges[i + 1];
    --count;
    if (best > 0) merges[best - 1] = merge_of(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = merge_of(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

void Bpe::join_many(std::vector<int32_t>& symbols) const {
  std::vector<Symbol> chain;
  chain.reserve(symbols.size());
  for (const int32_t id : symbols) {
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
    if (left.id != best.left || left.next < 0 || chain[left.next].id != best.right) continue;  // stale pair
    Symbol& right = chain[left.next];
    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) chain[left.next].previous = best.at;
    offer(left.previous);
    offer(best.at);
  }
  symbols.clear();
  for (int64_t at = 0; at >= 0; at = chain[at].next) symbols.push_back(chain[at].id);
}

}  // namespace colossal::text
