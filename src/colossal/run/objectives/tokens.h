// Objectives of tokens: the one that follows, and the ones that were hidden.
#pragma once
#include "colossal/run/objectives/head_objective.h"

namespace colossal::run {

/// Labels [B, S]: the token that follows.
class NextToken : public HeadObjective {
 public:
  NextToken(const Config& config, const models::ModelShape& shape);
  OpenedData open(const DataRequest& request) const override;
};

/// Labels [B, S]: the tokens that were hidden, at their places.
class MaskedToken : public CountingObjective {
 public:
  MaskedToken(const Config& config, const models::ModelShape& shape);
  OpenedData open(const DataRequest& request) const override;
  Ids ids(const text::Tokenizer& tokenizer) const override;
};

}  // namespace colossal::run
