#include "colossal/text/training/tokenizer_training.h"

#include <algorithm>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "colossal/text/tokenizers/decoder.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/training/bpe_trainer.h"
#include "colossal/text/training/unigram_trainer.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kUsualUnknown[] = "<unk>";  // unknown token of unigram models

/// Returns the normalizer, pre_tokenizer and decoder.
TokenizerSections<json> usual_sections(const std::string& kind) {
  if (kind == "bpe") {
    const json byte_level = byte_level_section(true);
    return {.pre_tokenizer = byte_level, .decoder = byte_level};
  }
  const json metaspace = metaspace_section("always", true);
  return {
      .normalizer = {{"type", "Sequence"},
                     {"normalizers", {{{"type", "Nmt"}}, {{"type", "NFKC"}}, replace_section("Regex", " {2,}", " ")}}},
      .pre_tokenizer = metaspace,
      .decoder = metaspace};
}

/// Checks all options that can be checked before the first text is read.
TokenizerTraining checked(TokenizerTraining training) {
  require(training.kind == "bpe" || training.kind == "unigram", "tokenizer",
          "the kind of a tokenizer must be bpe or unigram: got ", printable(training.kind));
  require(training.vocabulary > 0, "tokenizer", "a vocabulary must have tokens: got ", training.vocabulary);
  std::set<std::string> seen;
  for (const std::string& token : training.special)
    require(!token.empty() && seen.insert(token).second, "tokenizer",
            "special tokens must not be empty or occur twice: got ", token.empty() ? "an empty one" : token);
  for (const std::string& token : training.special)
    require(valid_utf8(token) == token, "tokenizer", "special tokens must be UTF-8: got ", valid_utf8(token));
  return training;
}

TokenizerSections<json> sections_of(const TokenizerTraining& training) {
  if (training.like.is_null()) return usual_sections(training.kind);
  TokenizerSections<json> sections;
  sections.each([&](const char* name, json& section) { section = training.like.value(name, json()); });
  return sections;
}

std::vector<uint32_t> byte_alphabet() {
  std::vector<uint32_t> alphabet;
  for (int byte = 0; byte < 256; ++byte)
    alphabet.push_back(first_code_point(to_byte_alphabet(std::string(1, static_cast<char>(byte)))).value);
  return alphabet;
}

/// Returns the unknown token of `model`, a section of `like`; empty if it names none.
std::string unknown_of(const json& model) {
  if (!model.is_object()) return "";
  const int64_t id = value_or<int64_t>(model, "unk_id", -1);
  const json pieces = id >= 0 ? model.value("vocab", json()) : json();
  if (pieces.is_array() && id < static_cast<int64_t>(pieces.size())) return pieces.at(id).at(0).get<std::string>();
  return value_or<std::string>(model, "unk_token", "");
}

}  // namespace

TokenizerTrainer::TokenizerTrainer(TokenizerTraining training) : training_(checked(std::move(training))) {
  try {
    sections_ = sections_of(training_);
    counter_.emplace(sections_.normalizer, sections_.pre_tokenizer, training_.threads);
    const Decoder check(sections_.decoder);  // fails here if the learned tokenizer could not decode
    unknown_ = unknown_of(sections_.model);
  } catch (const json::exception& error) {
    throw Error("tokenizer", concat("the tokenizer `like` must be a tokenizer.json: ", printable(error.what())));
  }
  if (training_.kind == "unigram" && unknown_.empty()) unknown_ = kUsualUnknown;
  const auto& special = training_.special;
  if (!unknown_.empty() && std::find(special.begin(), special.end(), unknown_) == special.end())
    training_.special.insert(special.begin(), unknown_);
}

ordered_json TokenizerTrainer::bpe(const std::vector<CountedWord>& words) const {
  const json& model = sections_.model;
  const auto of_model = [&](const char* key) {
    return model.is_object() ? value_or<std::string>(model, key, "") : std::string();
  };
  const Normalizer normalizer(sections_.normalizer);
  const PreTokenizer pre_tokenizer(sections_.pre_tokenizer, Spelling::Bytes, normalizer.is_byte_level());
  const BpeTraining training{.vocabulary = training_.vocabulary,
                             .min_frequency = training_.min_frequency,
                             .special = training_.special,
                             .alphabet = pre_tokenizer.makes_bytes() ? byte_alphabet() : std::vector<uint32_t>(),
                             .prefix = of_model("continuing_subword_prefix"),
                             .suffix = of_model("end_of_word_suffix")};
  const TrainedBpe trained = train_bpe(words, training);
  ordered_json vocabulary = ordered_json::object(), merges = ordered_json::array();
  for (size_t id = 0; id < trained.tokens.size(); ++id)
    vocabulary.get_ref<ordered_json::object_t&>().emplace_back(trained.tokens[id], id);
  for (const auto& [left, right] : trained.merges) merges.push_back({left, right});
  return bpe_section(unknown_, training.prefix, training.suffix, std::move(vocabulary), std::move(merges));
}

ordered_json TokenizerTrainer::unigram(const std::vector<CountedWord>& words) const {
  const TrainedUnigram trained = train_unigram(words, {.vocabulary = training_.vocabulary,
                                                       .special = training_.special,
                                                       .unknown = unknown_,
                                                       .threads = training_.threads});
  ordered_json pieces = ordered_json::array();
  for (const auto& [piece, score] : trained.pieces) pieces.push_back({piece, score});
  return {{"type", "Unigram"}, {"unk_id", trained.unknown}, {"vocab", std::move(pieces)}, {"byte_fallback", false}};
}

ordered_json TokenizerTrainer::trained() && {
  const std::vector<CountedWord> words = std::move(*counter_).words();
  TokenizerSections<ordered_json> learned{.model = training_.kind == "bpe" ? bpe(words) : unigram(words),
                                          .normalizer = sections_.normalizer,
                                          .pre_tokenizer = sections_.pre_tokenizer,
                                          .decoder = sections_.decoder,
                                          .added_tokens = ordered_json::array()};
  const std::vector<std::string>& special = training_.special;  // in the order in which the trainers number them
  for (size_t id = 0; id < special.size(); ++id) learned.added_tokens.push_back(added_token(id, special[id]));
  return std::move(learned).to_json(TokenizerSections<ordered_json>::head());
}

}  // namespace colossal::text
