#include "colossal/diffusion/attention_broadcast.h"

namespace colossal::diffusion {

bool AttentionBroadcast::reuses(nn::AttentionKind kind, int64_t step, int64_t steps) const {
  const int64_t every = kind == nn::AttentionKind::Space ? space : kind == nn::AttentionKind::Time ? time : caption;
  const int64_t first = (begin * steps + 99) / 100;  // the first step that is not before the range
  return step >= first && 100 * step < end * steps && (step - first) % every != 0;
}

nn::AttentionUses AttentionBroadcast::uses(int64_t step, int64_t steps) const {
  const auto use = [&](nn::AttentionKind kind) {
    if (reuses(kind, step, steps)) return nn::AttentionUse::Reused;
    return reuses(kind, step + 1, steps) ? nn::AttentionUse::Kept : nn::AttentionUse::Computed;
  };
  return {.space = use(nn::AttentionKind::Space),
          .time = use(nn::AttentionKind::Time),
          .caption = use(nn::AttentionKind::Caption)};
}

}  // namespace colossal::diffusion
