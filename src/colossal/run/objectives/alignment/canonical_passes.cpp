#include "colossal/run/objectives/alignment/canonical_passes.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/comm/launch/device.h"
#include "colossal/models/expert_keys.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/ops/activation.h"
#include "colossal/run/base_codes.h"

namespace colossal::run {
namespace {

/// The feed-forward layers of a family.
enum class FeedForward { Plain, Gated, Fixed };  // Fixed: no key chooses the activation

/// A family whose layers compute each token by itself in canonical passes, but for the keys that own_obstacle() checks.
struct CanonicalFamily {
  const char* name;
  FeedForward feed_forward;
};

constexpr CanonicalFamily kFamilies[] = {
    {"gpt2", FeedForward::Plain},    {"gpt-neox", FeedForward::Plain}, {"gptj", FeedForward::Plain},
    {"falcon", FeedForward::Plain},  {"opt", FeedForward::Plain},      {"bloom", FeedForward::Fixed},
    {"palm", FeedForward::Fixed},    {"llama", FeedForward::Gated},    {"qwen2", FeedForward::Gated},
    {"qwen3", FeedForward::Gated},   {"gemma2", FeedForward::Gated},   {"phi3", FeedForward::Gated},
    {"deepseek", FeedForward::Gated}};

/// A plan may name accelerators that this machine does not have.
at::Device device_of_run(const Config& config, const std::optional<at::Device>& device) {
  if (device) return *device;
  return config.run.device == "cuda" ? at::Device(at::kCUDA) : comm::choose_device(config.run.device, 0);
}

/// Returns the reason why there are no panels; empty = there can be.
std::string obstacle_to_panels(const Config& config, const std::optional<at::Device>& device) {
  const at::Device here = device_of_run(config, device);
  if (!here.is_cpu()) return concat("the device ", here.str(), ", because only CPUs have packed weights");
  const at::ScalarType dtype = config.precision.dtype();
  const bool has_kernels = dtype == at::kFloat || dtype == at::kBFloat16;
  if (!has_kernels || config.precision.mode == "fp8") return concat("precision.mode = \"", config.precision.mode, "\"");
  return "";
}

std::string layout_obstacle(const distributed::ParallelConfig& parallel) {
  if (parallel.tensor.size > 1 && parallel.tensor.mode != "1d")
    return concat("parallel.tensor.mode = \"", parallel.tensor.mode, "\"");
  if (parallel.tensor.size > 1 && parallel.tensor.sequence) return "parallel.tensor.sequence = true";
  if (parallel.sequence.size > 1) return concat("parallel.sequence.size = ", parallel.sequence.size);
  return "";
}

/// Returns the own keys of a family with their values.
ConfigDocument own_document(const models::ModelShape& shape) {
  models::OwnSizes own = shape.own.is_empty() ? shape.architecture->own : shape.own;
  return ConfigDocument::parse(fields_to_toml([&](Fields& f) { own.fields(f); }), "the keys of the model");
}

/// Checks what the keys of the family choose.
std::string own_obstacle(const models::ModelShape& shape, FeedForward feed_forward) {
  const ConfigDocument own = own_document(shape);
  const double cap = std::stod(own.text("logit_cap").value_or("0"));
  if (cap != 0) return concat("model.logit_cap = ", cap, ", because training caps logits before they are rounded");
  if (feed_forward == FeedForward::Fixed) return "";
  const std::string name = own.text("activation").value();
  if (ops::computes_by_element(ops::activation(name), feed_forward == FeedForward::Gated)) return "";
  return concat("model.activation = \"", name, "\", whose last elements LibTorch computes in another way");
}

std::string expert_obstacle(const Config& config, const models::ModelShape& shape) {
  const models::ExpertKeys keys = models::expert_keys_of(shape);
  if (keys.count == 0) return "";
  if (keys.capacity > 0)
    return concat("model.experts.capacity = ", keys.capacity, ", by which training alone drops tokens");
  if (keys.score == "sigmoid")
    return "model.experts.score = \"sigmoid\", whose last elements LibTorch computes in another way";
  if (config.parallel.expert.compresses())
    return concat("parallel.expert.compress = \"", config.parallel.expert.compress, "\"");
  const std::string base = config.tables.text("adapter.base").value_or("model");
  const bool is_as_it_is = base == "model" || (base == "bf16" && config.precision.dtype() == at::kBFloat16);
  if (!is_as_it_is) return concat("experts in another form (adapter.base = \"", base, "\")");
  if (keeps_codes(config)) return "experts stored as codes (model.from is quantized)";
  return "";
}

}  // namespace

bool default_panels(const Config& config, std::optional<at::Device> device) {
  return !config.memory.has_tiers() && obstacle_to_panels(config, device).empty();
}

std::string canonical_obstacle(const Config& config, const models::ModelShape& shape, bool has_panels,
                               std::optional<at::Device> device) {
  if (const std::string found = obstacle_to_panels(config, device); !found.empty()) return found;
  if (!has_panels)
    return config.memory.has_tiers() ? "tiers of [memory] and no rollout.panels" : "rollout.panels = false";
  if (const std::string found = layout_obstacle(config.parallel); !found.empty()) return found;
  const std::string& name = shape.architecture->name;
  const auto* family =
      std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const auto& row) { return row.name == name; });
  if (family == std::end(kFamilies))
    return concat("the architecture ", name, ", of which the library does not know that its layers compute each token ",
                  "by itself");
  if (shape.part<models::LatentSizes>().cached > 0) return concat("the attention to latents of ", name);
  if (const int64_t even = shape.part<models::LongTexts>().even_positions; even > 0 && shape.positions > even)
    return concat("rotary positions that depend on the length of a text above ", even, " tokens (model.rope_type)");
  if (const std::string found = own_obstacle(shape, family->feed_forward); !found.empty()) return found;
  return expert_obstacle(config, shape);
}

}  // namespace colossal::run
