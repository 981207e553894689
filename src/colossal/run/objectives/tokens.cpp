// Objectives of tokens: the next token, and masked tokens.
#include "colossal/base/error.h"
#include "colossal/run/objectives/built_in.h"
#include "colossal/run/objectives/head_objective.h"
#include "colossal/run/objectives/text_data.h"

namespace colossal::run {
namespace {

void check_token_head(const char* objective, const models::ModelShape& shape) {
  const models::Task task = shape.task();
  check_head(task.reads_text() && !task.answers() && task.classes == 0 && !task.scores(), objective,
             "predicts each token of a text", shape);
}

data::Masking masking_of(const MaskedTokenKeys& keys, const text::Tokenizer& tokenizer) {
  const int64_t words = tokenizer.vocabulary_size(), mask = tokenizer.mask_id();
  return {.share = keys.masked,
          .random = keys.masked_random,
          .kept = keys.masked_kept,
          .mask_id = mask < 0 ? words : mask,
          .vocabulary = words,
          .begin_id = tokenizer.begin_id()};
}

/// The objective of a language model. Labels [B, S]: the next token at each position.
class NextToken : public HeadObjective {
 public:
  NextToken(const Config& config, const models::ModelShape& shape, StreamKeys keys);
  OpenedData open(const DataRequest& request) const override;

 private:
  StreamKeys keys_;
};

/// The objective of a masked language model. Labels [B, S]: the masked tokens, at their positions.
class MaskedToken : public CountingObjective {
 public:
  /// Errors ("data"): shares of masked tokens whose sum is above 1.
  MaskedToken(const Config& config, const models::ModelShape& shape, MaskedTokenKeys keys);
  OpenedData open(const DataRequest& request) const override;
  Ids ids(const text::Tokenizer& tokenizer) const override;

 private:
  MaskedTokenKeys keys_;
};

NextToken::NextToken(const Config& config, const models::ModelShape& shape, StreamKeys keys)
    : HeadObjective(config, shape), keys_(std::move(keys)) {
  check_token_head("next-token", shape);
  check_stream_keys(keys_);
}

OpenedData NextToken::open(const DataRequest& request) const { return open_tokens(request, keys_, {}); }

MaskedToken::MaskedToken(const Config& config, const models::ModelShape& shape, MaskedTokenKeys keys)
    : CountingObjective(config, shape), keys_(std::move(keys)) {
  check_token_head("masked-token", shape);
  check_stream_keys(keys_.stream);
  require(keys_.masked_random + keys_.masked_kept <= 1, "data",
          "masked_random and masked_kept are shares of the masked tokens, at most 1 together: got ",
          keys_.masked_random, " and ", keys_.masked_kept);
}

OpenedData MaskedToken::open(const DataRequest& request) const {
  return open_tokens(request, keys_.stream, masking_of(keys_, *request.tokenizer));
}

Objective::Ids MaskedToken::ids(const text::Tokenizer& tokenizer) const {
  const int64_t words = tokenizer.vocabulary_size();
  return tokenizer.mask_id() < 0 ? Ids{words + 1, "the mask token"} : Ids{words};
}

}  // namespace

std::unique_ptr<Objective> make_next_token(const Config& config, const OwnTables& tables,
                                           const models::ModelShape& shape) {
  return std::make_unique<NextToken>(config, shape, tables.data<StreamKeys>());
}

std::unique_ptr<Objective> make_masked_token(const Config& config, const OwnTables& tables,
                                             const models::ModelShape& shape) {
  return std::make_unique<MaskedToken>(config, shape, tables.data<MaskedTokenKeys>());
}

}  // namespace colossal::run
