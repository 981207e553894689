#include "colossal/run/objectives/tokens.h"

#include "colossal/run/objectives/text_data.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {
namespace {

void check_token_head(const char* objective, const models::ModelShape& shape) {
  const models::Task task = shape.task();
  check_head(task.reads_text() && !task.answers() && task.classes == 0, objective, "predicts each token of a text",
             shape);
}

data::Masking masking_of(const DataConfig& d, const text::Tokenizer& tokenizer) {
  const int64_t words = tokenizer.vocabulary_size(), mask = tokenizer.mask_id();
  return {.share = d.masked,
          .random = d.masked_random,
          .kept = d.masked_kept,
          .mask_id = mask < 0 ? words : mask,
          .vocabulary = words};
}

}  // namespace

NextToken::NextToken(const Config& config, const models::ModelShape& shape) : HeadObjective(config, shape) {
  check_token_head("next-token", shape);
}

OpenedData NextToken::open(const DataRequest& request) const {
  const bool streams = is_streamed(request.config.data);
  check_unused_data_keys(request.config, {.records = streams, .streams = streams});
  return open_tokens(request, {});
}

MaskedToken::MaskedToken(const Config& config, const models::ModelShape& shape) : CountingObjective(config, shape) {
  check_token_head("masked-token", shape);
}

OpenedData MaskedToken::open(const DataRequest& request) const {
  const bool streams = is_streamed(request.config.data);
  check_unused_data_keys(request.config, {.records = streams, .streams = streams, .masks = true});
  return open_tokens(request, masking_of(request.config.data, *request.tokenizer));
}

Objective::Ids MaskedToken::ids(const text::Tokenizer& tokenizer) const {
  const int64_t words = tokenizer.vocabulary_size();
  return tokenizer.mask_id() < 0 ? Ids{words + 1, "the mask token"} : Ids{words};
}

}  // namespace colossal::run
