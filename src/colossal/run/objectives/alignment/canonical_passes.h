// Whether answers are drawn with panels, and whether training and generation of a run give a token the same bits
// (nn/canonical.h).
//
//   const bool panels = keys.panels == "auto" ? run::default_panels(config) : keys.panels == "true";
//   const std::string obstacle = run::canonical_obstacle(config, shape, panels);   // "precision.mode = \"fp16\""
//   require(obstacle.empty(), "rollout", "canonical = true is impossible with ", obstacle, "; set it to \"auto\"");
#pragma once
#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "colossal/models/shape.h"
#include "colossal/run/config.h"

namespace colossal::run {

/// Returns true if answers are drawn with panels unless the config says otherwise: on the CPU in fp32 or bf16, without
/// tiers of [memory]. `device`: the device of the ranks; none = the one that run.device means here, where "cuda" need
/// not exist. Errors ("run"): a run.device that comm::choose_device() does not know.
bool default_panels(const Config& config, std::optional<at::Device> device = std::nullopt);

/// Returns the reason why training and generation of the model `shape` do not give a token the same bits in this run,
/// even with panels in training (nn::WeightPacking::in_training); empty = they do. The reason completes the sentence
/// "canonical is impossible with". It names a key where the user can change one. `has_panels`: whether answers are
/// drawn with panels (default_panels(), unless rollout.panels says otherwise), which may be so with tiers, too.
/// `device`: as above.
///
/// Families: a family that canonical_passes.cpp does not list, such as one outside the library, is a reason.
/// Adapters: those of the table [adapter]. A product of another adapter must multiply each row by itself in canonical
///           passes.
/// Cost:     microseconds.
/// Errors:   those of default_panels().
std::string canonical_obstacle(const Config& config, const models::ModelShape& shape, bool has_panels,
                               std::optional<at::Device> device = std::nullopt);

}  // namespace colossal::run
