// The tokenizer of protein language models: a token for each letter of a chain, and some for words such as `<mask>`.
//
//   vocab.txt:  <cls> <pad> <eos> <unk> L A G V ... <mask>, one a line, whose ids count from 0
//   "MK<mask>T"  ->  M K <mask> T;  encode_whole() puts <cls> and <eos> around them
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// A tokenizer with the ids of EsmTokenizer of transformers 5.23. In contrast to it, decode() puts no spaces between
/// letters. At each place of a text the longest token is taken. White space is left out. Of the rest, each run without
/// white space becomes one unknown token; small letters are such a rest.
class LetterTokenizer final : public Tokenizer {
 public:
  /// Tokens with a purpose. They have no bytes in a decoded text.
  struct Special {
    std::string begin = "<cls>", end = "<eos>", pad = "<pad>", unknown = "<unk>", mask = "<mask>";
  };

  /// `tokens`: the vocabulary in the order of ids. Lines that repeat a token or are empty have an id, but no text has
  /// it. Errors ("tokenizer"): a begin, end or unknown token that is not in the vocabulary; `name` is in messages.
  LetterTokenizer(std::vector<std::string> tokens, const Special& special, const std::string& name);

  std::vector<int64_t> encode(std::string_view text) const override;
  PlacedTokens encode_placed(std::string_view text) const override;
  std::vector<int64_t> encode_prompt(std::string_view text) const override;
  std::vector<int64_t> encode_document(std::string_view text) const override;
  Encoding encode_whole(std::string_view text) const override;
  Encoding encode_pair(std::string_view first, std::string_view second) const override;
  std::string piece(int64_t id) const override;
  std::string spelling(int64_t id) const override;
  int64_t vocabulary_size() const override { return static_cast<int64_t>(tokens_.size()); }
  int64_t begin_id() const override { return begin_; }
  int64_t end_id() const override { return end_; }
  int64_t mask_id() const override { return mask_; }

 private:
  /// Calls take(id, place in the text) for each token.
  void scan(std::string_view text, const std::function<void(int64_t id, size_t begin)>& take) const;
  int64_t id_of(std::string_view token) const;

  std::vector<std::string> tokens_;
  std::array<int64_t, 256> letters_{};              // ids of tokens of one byte; -1 = none
  std::array<std::vector<int64_t>, 256> longer_{};  // ids of tokens of several bytes, by their first one, longest first
  std::vector<bool> is_special_;
  int64_t begin_ = -1, end_ = -1, unknown_ = -1, mask_ = -1;
};

/// Returns true if a vocab.txt is one of letters: its tokenizer_config.json, `config`, names the class EsmTokenizer, or
/// no class and the file has lines `<cls>`, `<eos>` and `<mask>`, which BERT's vocabularies do not have.
bool is_letter_vocabulary(const std::string& file, const nlohmann::json& config);

/// Reads a vocab.txt of letters. `config` may name other special tokens. Errors: those of LetterTokenizer.
std::unique_ptr<Tokenizer> read_letter_vocabulary(const std::string& file, const nlohmann::json& config);

}  // namespace colossal::text
