// Texts and the classes they belong to, a line each, as samples.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/record_source.h"
#include "colossal/text/tokenizer.h"

namespace colossal::data {

struct LabelledTexts {
  std::vector<std::string> texts;
  std::vector<int64_t> labels;
  int64_t classes = 0;               ///< labels are below it
  std::vector<std::string> names{};  ///< of the classes, in their order; empty: labels are numbers
  bool are_unnamed = false;          ///< every label is LABEL_i, as transformers calls class i where it has no name
  std::string fingerprint;           ///< changes with the file: what a data position in a checkpoint refers to
  std::vector<std::string> passed_over{};  ///< notices of lines that were left out, for people

  /// Numbers the classes as `order` has their names; LABEL_i is a name here. Nothing where labels are numbers.
  /// Errors ("data"): a name that is not in `order`.
  void number_as(const std::vector<std::string>& order);
  /// Training and held-out part: each text is held out with that probability, by its number alone.
  std::pair<LabelledTexts, LabelledTexts> split(double held_out) const;
};

/// How JSON lines are read.
struct LabelledOptions {
  std::vector<std::string> text_columns = {"text"};  ///< whose texts are one
  std::string label_column = "label";
  int64_t longest_line = 16 << 20;  ///< bytes; a longer one is a fault
  Faults faults = Faults::Refuse;   ///< Skip: lines that are none of this, and the rest of a damaged file, are left out
};

/// Reads a file of one text a line: of JSON lines (also packed) and Parquet objects {"text": "...", "label": 1},
/// of any other file, which may be packed too, `label<tab>text`. Empty lines are passed over. Labels are all numbers
/// from 0, or all names, which get numbers in the order of the alphabet; where all are LABEL_i, these are classes i,
/// without names.
/// Errors ("data"): no such file, one of more than 1 GiB unpacked, no text in it, or a line that is none of this (with
/// its number): a name where others have numbers, such as a header, a number that is no class, or a label that is not
/// UTF-8 (config.toml and config.json keep the names).
LabelledTexts read_labelled_texts(const std::string& path, const LabelledOptions& options = {});

/// Sample i is text i: the tokenizer's begin token (its end token where it has none), the first tokens of the text, and
/// the end token, then end tokens up to `sequence`. Labels are [B, 1]. What fills up is a document of its own, number
/// 1: no token of the text attends to it.
/// Errors ("data"): no texts, a sequence below 3, a tokenizer without an end token.
class LabelledSamples : public Samples {
 public:
  LabelledSamples(const LabelledTexts& texts, const text::Tokenizer& tokenizer, int64_t sequence);
  int64_t count() const override { return static_cast<int64_t>(labels_.size()); }
  tensor::Batch make(int64_t rows) const override;
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  /// The file, its tokens as the tokenizer made them, and the names of the classes.
  nlohmann::json traits() const override;

 private:
  int64_t sequence_, begin_id_, end_id_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<int64_t> labels_;
  std::vector<std::string> names_;
  std::string fingerprint_, tokens_fingerprint_;
};

}  // namespace colossal::data
