// Objectives of tokens: the next token, and masked tokens.
#pragma once
#include "colossal/run/objectives/head_objective.h"

namespace colossal::run {

/// The objective of a language model. Labels [B, S]: the next token at each position.
class NextToken : public HeadObjective {
 public:
  NextToken(const Config& config, const models::ModelShape& shape);
  OpenedData open(const DataRequest& request) const override;
};

/// The objective of a masked language model. Labels [B, S]: the masked tokens, at their positions.
class MaskedToken : public CountingObjective {
 public:
  MaskedToken(const Config& config, const models::ModelShape& shape);
  OpenedData open(const DataRequest& request) const override;
  Ids ids(const text::Tokenizer& tokenizer) const override;
};

}  // namespace colossal::run
