#include "colossal/text/tokenizers/word_models.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

constexpr double kUnknownPenalty = 10;  // distance below the lowest score: sentencepiece's kUnkPenalty

int32_t unknown_id(const Vocabulary& vocabulary, const std::string& unknown) {
  const int32_t id = vocabulary.id_of(unknown);
  require(id >= 0, "tokenizer", "a word has no token, and the vocabulary no unk_token ", printable(unknown));
  return id;
}

int64_t characters_of(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += first_code_point(text.substr(at)).length;
  return count;
}

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

std::string Unigram::part_of_word(int64_t id, bool /*is_first*/, bool /*is_last*/) const {
  if (id == options_.unknown) return "";
  const int byte = options_.byte_fallback ? byte_tokens_.byte_of(id) : -1;
  return byte >= 0 ? std::string(1, static_cast<char>(byte)) : vocabulary_.token(id);
}

WordPiece::WordPiece(Vocabulary vocabulary, Options options)
    : WordModel(std::move(vocabulary)), options_(std::move(options)) {}

void WordPiece::encode(std::string_view word, std::vector<int64_t>& ids) const {
  if (characters_of(word) > options_.characters) return ids.push_back(unknown_id(vocabulary_, options_.unknown));
  const size_t before = ids.size();
  for (size_t begin = 0; begin < word.size();) {
    size_t end = std::min(word.size(), begin + vocabulary_.longest());
    int32_t id = -1;
    std::string token;
    for (; end > begin && id < 0; --end) {
      const bool whole = end == word.size() || (static_cast<unsigned char>(word[end]) & 0xC0) != 0x80;
      if (!whole) continue;
      token.assign(begin > 0 ? options_.prefix : "").append(word.substr(begin, end - begin));
      id = vocabulary_.id_of(token);
      if (id >= 0) break;
    }
    if (id < 0) {
      ids.resize(before);
      return ids.push_back(unknown_id(vocabulary_, options_.unknown));
    }
    ids.push_back(id);
    begin = end;
  }
}

std::string WordPiece::part_of_word(int64_t id, bool is_first, bool /*is_last*/) const {
  const std::string& token = vocabulary_.token(id);
  if (token == options_.unknown) return "";  // for the whole word
  return !is_first && token.starts_with(options_.prefix) ? token.substr(options_.prefix.size()) : token;
}

WordLevel::WordLevel(Vocabulary vocabulary, std::string unknown)
    : WordModel(std::move(vocabulary)), unknown_(std::move(unknown)) {}

void WordLevel::encode(std::string_view word, std::vector<int64_t>& ids) const {
  const int32_t id = vocabulary_.id_of(word);
  ids.push_back(id >= 0 ? id : unknown_id(vocabulary_, unknown_));
}

std::string WordLevel::part_of_word(int64_t id, bool /*is_first*/, bool /*is_last*/) const {
  return vocabulary_.token(id);  // begins where the word begins, whatever it is
}

}  // namespace colossal::text
