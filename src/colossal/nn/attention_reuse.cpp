#include "colossal/nn/attention_reuse.h"

#include "colossal/base/error.h"

namespace colossal::nn {

AttentionUse AttentionUses::of(AttentionKind kind) const {
  return kind == AttentionKind::Space ? space : kind == AttentionKind::Time ? time : caption;
}

at::Tensor AttentionReuse::output(AttentionKind kind, const void* layer, const std::function<at::Tensor()>& compute) {
  const AttentionUse use = uses_.of(kind);
  const std::pair key(kind, layer);
  if (use == AttentionUse::Reused) {
    const auto found = kept_.find(key);
    require(found != kept_.end(), "model", "an output of attention must be kept before it is reused: got none");
    return found->second;
  }
  kept_.erase(key);  // before the new one is computed, so that both are not in memory at once
  const at::Tensor output = compute();
  ++computed_[kind];
  if (use == AttentionUse::Kept) kept_[key] = output;
  return output;
}

int64_t AttentionReuse::computed(AttentionKind kind) const {
  const auto found = computed_.find(kind);
  return found == computed_.end() ? 0 : found->second;
}

at::Tensor reusable(const ForwardContext& step, AttentionKind kind, const void* layer,
                    const std::function<at::Tensor()>& compute) {
  const auto* reused = step.parts.find<ReusedAttention>();
  return reused && reused->outputs ? reused->outputs->output(kind, layer, compute) : compute();
}

}  // namespace colossal::nn
