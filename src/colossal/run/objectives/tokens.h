// Objectives of tokens: the next token, and masked tokens.
#pragma once
#include "colossal/run/objectives/data_keys.h"
#include "colossal/run/objectives/head_objective.h"

namespace colossal::run {

/// The objective of a language model. Labels [B, S]: the next token at each position.
class NextToken : public HeadObjective {
 public:
  using Keys = StreamKeys;
  NextToken(const Config& config, const models::ModelShape& shape, Keys keys);
  OpenedData open(const DataRequest& request) const override;

 private:
  Keys keys_;
};

/// The objective of a masked language model. Labels [B, S]: the masked tokens, at their positions.
class MaskedToken : public CountingObjective {
 public:
  using Keys = MaskedTokenKeys;
  /// Errors ("data"): shares of masked tokens whose sum is above 1.
  MaskedToken(const Config& config, const models::ModelShape& shape, Keys keys);
  OpenedData open(const DataRequest& request) const override;
  Ids ids(const text::Tokenizer& tokenizer) const override;

 private:
  Keys keys_;
};

}  // namespace colossal::run
