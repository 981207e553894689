// Objectives of models with an encoder and a decoder: the answer of a pair of texts, and spans hidden in a text.
#pragma once
#include "colossal/run/objectives/head_objective.h"

namespace colossal::run {

/// Labels [B, T]: the tokens that answer the source of each row. The data are pairs of texts.
class Target : public HeadObjective {
 public:
  Target(const Config& config, const models::ModelShape& shape);
  OpenedData open(const DataRequest& request) const override;
};

/// Labels [B, T]: the spans of tokens that sentinels hide in the source (data.noise_density). The data are plain text.
class SpanCorruption : public Target {
 public:
  using Target::Target;
  OpenedData open(const DataRequest& request) const override;
  Ids ids(const text::Tokenizer& tokenizer) const override;
};

}  // namespace colossal::run
