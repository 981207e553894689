// Objectives of models with an encoder and a decoder: the target of a pair of texts, and hidden spans of a text.
#pragma once
#include "colossal/run/objectives/data_keys.h"
#include "colossal/run/objectives/head_objective.h"

namespace colossal::run {

/// The objective for pairs of texts. Labels [B, T]: the target tokens for the source of each row.
class Target : public HeadObjective {
 public:
  using Keys = TargetKeys;
  Target(const Config& config, const models::ModelShape& shape, Keys keys);
  OpenedData open(const DataRequest& request) const override;

 protected:
  const Keys& keys() const { return keys_; }

 private:
  Keys keys_;
};

/// The objective for plain text. Labels [B, T]: the spans of tokens that sentinels hide in the source
/// (data.noise_density).
class SpanCorruption : public Target {
 public:
  using Target::Target;
  OpenedData open(const DataRequest& request) const override;
  Ids ids(const text::Tokenizer& tokenizer) const override;
};

}  // namespace colossal::run
