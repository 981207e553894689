#include "colossal/text/tokenizers/json_model.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/bpe.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/word_models.h"

namespace colossal::text {
namespace {

using nlohmann::json;

int64_t id_of(const json& id, const std::string& token) {
  require(id.is_number_integer(), "tokenizer", "the id of ", printable(token), " must be a whole number: got ",
          printable(id.dump()));
  return id.get<int64_t>();
}

/// Refuses unknown options, because they would change the tokens.
void refuse_unknown(const json& section, const std::set<std::string>& known) {
  for (const auto& [key, value] : section.items())
    require(value.is_null() || known.count(key), "tokenizer", "the model's option ", printable(key),
            " is not supported: got ", printable(value.dump()));
}

Vocabulary parse_vocabulary(const json& list) {
  require(list.is_object(), "tokenizer", "the model's vocab must name an id for each token");
  Vocabulary vocabulary(list.size());
  for (const auto& [token, id] : list.items()) vocabulary.add(token, id_of(id, token));
  return vocabulary;
}

Bpe::Merges parse_merges(const json& list) {
  Bpe::Merges merges;
  for (const json& merge : list) {
    if (merge.is_array() && merge.size() == 2) {
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    require(space != std::string::npos && text.find(' ', space + 1) == std::string::npos, "tokenizer",
            "a merge must name two tokens: got ", printable(text));
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

std::unique_ptr<WordModel> parse_bpe(const json& section, bool bytes) {
  refuse_unknown(section, {"type", "vocab", "merges", "dropout", "unk_token", "continuing_subword_prefix",
                           "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges"});
  const auto dropout = value_or(section, "dropout", 0.0);
  require(dropout == 0, "tokenizer", "a dropout of merges is not supported: got ", dropout);
  return std::make_unique<Bpe>(parse_vocabulary(section.at("vocab")), parse_merges(section.at("merges")),
                               Bpe::Options{.bytes = bytes,
                                            .byte_fallback = value_or(section, "byte_fallback", false),
                                            .ignore_merges = value_or(section, "ignore_merges", false),
                                            .unknown = value_or<std::string>(section, "unk_token", ""),
                                            .fuse_unknown = value_or(section, "fuse_unk", false),
                                            .prefix = value_or<std::string>(section, "continuing_subword_prefix", ""),
                                            .suffix = value_or<std::string>(section, "end_of_word_suffix", "")});
}

std::unique_ptr<WordModel> parse_unigram(const json& section) {
  refuse_unknown(section, {"type", "vocab", "unk_id", "byte_fallback"});
  const json& list = section.at("vocab");
  require(list.is_array(), "tokenizer", "the vocab of a Unigram must be a list of pieces and scores");
  Vocabulary vocabulary(list.size());
  std::vector<double> scores;
  for (const json& row : list) {
    require(row.is_array() && row.size() == 2, "tokenizer",
            "a row of a Unigram's vocab must be a piece and its score: got ", printable(row.dump()));
    const auto score = row[1].get<double>();
    require(std::isfinite(score), "tokenizer", "the score of a piece must be finite: got ", row[1].dump());
    vocabulary.add(row[0].get<std::string>(), static_cast<int64_t>(scores.size()));
    scores.push_back(score);
  }
  return std::make_unique<Unigram>(std::move(vocabulary), std::move(scores),
                                   Unigram::Options{.unknown = value_or<int64_t>(section, "unk_id", -1),
                                                    .byte_fallback = value_or(section, "byte_fallback", false)});
}

}  // namespace

const char* model_type(const json& section) {
  static constexpr const char* kTypes[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
  if (section.contains("type") && !section["type"].is_null()) {
    const std::string type = type_of(section);
    const auto found = std::find(std::begin(kTypes), std::end(kTypes), type);
    require(found != std::end(kTypes), "tokenizer", "the model ", printable(type),
            " is not supported, only BPE, Unigram, WordPiece, WordLevel");
    return *found;
  }
  if (section.contains("merges")) return kTypes[0];
  if (section.at("vocab").is_array()) return kTypes[1];
  return section.contains("continuing_subword_prefix") || section.contains("max_input_chars_per_word") ? kTypes[2]
                                                                                                       : kTypes[3];
}

std::unique_ptr<WordModel> parse_model(const json& section, bool bytes) {
  const std::string type = model_type(section);
  if (type == "BPE") return parse_bpe(section, bytes);
  if (type == "Unigram") return parse_unigram(section);
  if (type == "WordPiece") {
    refuse_unknown(section, {"type", "vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"});
    return std::make_unique<WordPiece>(
        parse_vocabulary(section.at("vocab")),
        WordPiece::Options{.unknown = value_or<std::string>(section, "unk_token", "[UNK]"),
                           .prefix = value_or<std::string>(section, "continuing_subword_prefix", "##"),
                           .characters = value_or<int64_t>(section, "max_input_chars_per_word", 100)});
  }
  refuse_unknown(section, {"type", "vocab", "unk_token"});
  return std::make_unique<WordLevel>(parse_vocabulary(section.at("vocab")),
                                     value_or<std::string>(section, "unk_token", "<unk>"));
}

}  // namespace colossal::text
