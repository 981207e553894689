#include "colossal/train/engine_panels.h"

#include "colossal/nn/canonical.h"

namespace colossal::train {

nn::ForwardContext Engine::as_generated(const Member& member, nn::ForwardContext step) {
  if (is_canonical(member)) step.parts.set(nn::Canonical{});
  return step;
}

bool Engine::is_canonical(const Member& member) {
  return member.panels && member.panels->weights.packing().in_training;
}

void Engine::pack(const Member& member) {
  if (!member.panels || member.panels->is_current) return;
  member.panels->weights.repack();
  member.panels->is_current = true;
}

void Engine::release(const Member& member) {
  if (!member.panels) return;
  member.panels->weights.release();
  member.panels->is_current = false;
}

/// Makes the panels fit for a pass without gradients, which multiplies with them if they exist.
void Engine::use_panels(const Member& member) {
  if (!member.panels) return;
  // They have the trained values of modules whose originals the pass uses.
  if (!member.originals.empty()) return release(member);
  if (is_canonical(member))
    pack(member);
  else if (!member.panels->is_current)
    release(member);
}

bool Engine::pack(const std::string& model) {
  const Member& one = member(model);
  pack(one);
  return one.panels != nullptr;
}

void Engine::release_panels(const std::string& model) {
  const Member& one = member(model);
  if (!is_canonical(one)) release(one);
}

int64_t Engine::panel_bytes(const std::string& model) const {
  const Member& one = member(model);
  return one.panels ? one.panels->weights.bytes() : 0;
}

void Engine::weights_changed() {
  for (const Member& one : members_)
    if (one.panels) one.panels->is_current = false;
}

}  // namespace colossal::train
