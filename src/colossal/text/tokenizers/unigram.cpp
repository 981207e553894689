#include "colossal/text/tokenizers/unigram.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/text/utf8.h"

namespace colossal::text {
namespace {

constexpr double kUnknownPenalty = 10;  // distance below the lowest score: sentencepiece's kUnkPenalty

}  // namespace

Unigram::Unigram(Vocabulary vocabulary, std::vector<double> scores, Options options)
    : WordModel(std::move(vocabulary)),
      scores_(std::move(scores)),
      options_(options),
      unknown_score_((scores_.empty() ? 0 : *std::min_element(scores_.begin(), scores_.end())) - kUnknownPenalty),
      byte_tokens_(vocabulary_) {
  require(options_.unknown >= -1 && options_.unknown < vocabulary_.size(), "tokenizer",
          "unk_id must be in the vocabulary of ", vocabulary_.size(), " pieces: got ", options_.unknown);
  for (const auto& [token, id] : vocabulary_.ids())
    if (!token.empty()) trie_.add(token, id);
}

void Unigram::append(std::string_view part, std::vector<int64_t>& ids) const {
  const int32_t id = vocabulary_.id_of(part);
  if (id >= 0) return ids.push_back(id);
  if (options_.byte_fallback && byte_tokens_.append(part, ids)) return;
  ids.push_back(options_.unknown);
}

void Unigram::encode(std::string_view word, std::vector<int64_t>& ids) const {
  struct Node {
    double score = 0;
    int64_t begin = -1, id = -1;
  };
  std::vector<Node> ends(word.size() + 1);  // the best path to each position
  const auto offer = [&](size_t begin, size_t end, int64_t id, double score) {
    Node& node = ends[end];
    if (node.begin < 0 || score > node.score) node = {score, static_cast<int64_t>(begin), id};
  };
  for (size_t at = 0; at < word.size();) {
    const double here = ends[at].score;
    const size_t length = first_character(word.substr(at)).length;
    bool is_piece = false;
    trie_.prefixes(word.substr(at), [&](size_t size, int32_t id) {
      offer(at, at + size, id, here + scores_[id]);
      is_piece |= size == length;
    });
    if (!is_piece) {
      require(options_.unknown >= 0, "tokenizer", "a character has no piece, and the vocabulary no unknown token");
      offer(at, at + length, options_.unknown, here + unknown_score_);
    }
    at += length;
  }
  std::vector<std::string_view> parts;  // parts, the last one first
  bool fuses = false;
  for (size_t end = word.size(); end > 0;) {
    const auto begin = static_cast<size_t>(ends[end].begin);
    const bool unknown = ends[end].id == options_.unknown;
    if (unknown && fuses) {
      parts.back() = word.substr(begin, parts.back().size() + end - begin);
    } else {
      parts.push_back(word.substr(begin, end - begin));
    }
    fuses = unknown;
    end = begin;
  }
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) append(*part, ids);
}

}  // namespace colossal::text
