#include "colossal/run/learned_parts.h"

#include "colossal/base/error.h"
#include "colossal/models/expert_keys.h"

namespace colossal::run {
namespace {

/// An expert never gets more tokens than there are, so a large capacity drops nothing.
bool drops_tokens(const models::ExpertKeys& experts) {
  return experts.capacity > 0 &&
         experts.capacity * static_cast<double>(experts.used) < static_cast<double>(experts.count);
}

std::string reason_of_micro_batches(const models::ExpertKeys& experts, const Objective& objective) {
  std::string keys;
  if (experts.count > 0 && drops_tokens(experts)) keys = "model.experts.capacity";
  if (experts.count > 0 && experts.balance_loss != 0)
    keys += concat(keys.empty() ? "" : " and ", "model.experts.balance_loss");
  if (!keys.empty())
    return concat(keys, keys.find(" and ") == std::string::npos ? " counts" : " count", " the tokens of a micro-batch");
  return objective.compares_samples() ? "the objective compares the samples of a micro-batch" : "";
}

/// Returns the ranks of a replica that hold different experts because of its tensor group.
int64_t dealt_ranks(const distributed::ParallelConfig& parallel) {
  return parallel.expert.splits() ? 1 : parallel.tensor.size;
}

std::string routing_text(const distributed::ParallelConfig& parallel) {
  std::string text = std::to_string(parallel.replicas());
  if (parallel.sequence.size > 1) text += concat(" x sequence ", parallel.sequence.size, " ", parallel.sequence.mode);
  if (dealt_ranks(parallel) > 1) text += concat(" x tensor ", parallel.tensor.size, " ", parallel.tensor.mode);
  return text;
}

std::string replicas_text(const distributed::ParallelConfig& parallel, bool has_experts) {
  if (parallel.copies() == 1) return "1";
  std::string text = concat(parallel.copies(), " with zero ", parallel.zero);
  if (parallel.zero_group > 0) text += concat(" in groups of ", parallel.zero_group);
  if (has_experts) text += concat(", of experts ", parallel.expert_copies());
  return text;
}

std::string messages_text(const distributed::ParallelConfig& parallel) {
  const int64_t ranks = parallel.expert.size * dealt_ranks(parallel);
  return concat(ranks, ranks > 1 && parallel.expert.node > 0 ? concat(" in nodes of ", parallel.expert.node) : "");
}

}  // namespace

LearnedParts::LearnedParts(const distributed::ParallelConfig& given, const models::ModelShape& shape,
                           const Objective& objective) {
  const models::ExpertKeys experts = models::expert_keys_of(shape);
  has_experts_ = experts.count > 0;
  micro_batches_ = reason_of_micro_batches(experts, objective);
  routes_ = has_experts_ && experts.balance_loss != 0 && experts.balance_over == "rank";
  compresses_ = given.compress != "none";
  compresses_tokens_ = has_experts_ && given.expert.compresses();
}

std::vector<LearnedPart> LearnedParts::of(const distributed::ParallelConfig& parallel, int64_t micro_batches) const {
  std::vector<LearnedPart> parts;
  if (!micro_batches_.empty()) parts.push_back({"micro-batches", std::to_string(micro_batches), micro_batches_});
  if (routes_)
    parts.push_back({"routing ranks", routing_text(parallel),
                     "model.experts.balance_over = \"rank\" balances the tokens of each rank"});
  if (compresses_)
    parts.push_back({"replicas", replicas_text(parallel, has_experts_), "parallel.compress rounds what replicas send"});
  if (compresses_tokens_)
    parts.push_back(
        {"expert ranks", messages_text(parallel), "parallel.expert.compress rounds the tokens that leave a rank"});
  return parts;
}

std::string learned_change(const std::vector<LearnedPart>& kept, const std::vector<LearnedPart>& other) {
  for (size_t i = 0; i < kept.size(); ++i)
    if (kept[i].value != other.at(i).value)
      return concat(kept[i].what, " must stay ", kept[i].value, ", because ", kept[i].why, ": got ", other[i].value);
  return "";
}

std::vector<std::string> describe(const std::vector<LearnedPart>& parts) {
  std::vector<std::string> lines;
  for (const LearnedPart& part : parts)
    lines.push_back(concat(part.what, " stay ", part.value, ", because ", part.why));
  return lines;
}

}  // namespace colossal::run
