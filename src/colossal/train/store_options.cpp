#include "colossal/train/store_options.h"

namespace colossal::train {
namespace {

/// Returns true if a rank without ZeRO has tiers: then it is configured as one that shards with itself alone.
bool offloads_all(const run::Config& config) { return config.parallel.zero == 0 && config.memory.has_tiers(); }

/// Returns the ZeRO stage.
int64_t stage_of(const run::Config& config) { return offloads_all(config) ? 3 : config.parallel.zero; }

}  // namespace

memory::ChunkOptions chunk_options(const run::Config& config, at::ScalarType dtype) {
  memory::ChunkOptions options;
  options.sharing = memory::Sharing::of_stage(static_cast<int>(stage_of(config)));
  options.sharers = offloads_all(config) ? 1 : static_cast<int>(config.parallel.zero_group);
  options.capacity =
      static_cast<int64_t>(config.parallel.chunk_mib * (1 << 20)) / static_cast<int64_t>(c10::elementSize(dtype));
  if (config.precision.has_masters()) options.masters = at::kFloat;
  options.compression = comm::compression_of(config.parallel.compress);
  return options;
}

parallel::GradientOptions gradient_options(const run::Config& config, at::ScalarType dtype) {
  const bool one = config.micro_batches() == 1;
  const bool is_shared = stage_of(config) >= 2;
  const parallel::PipelineConfig& pipeline = config.parallel.pipeline;
  return {.sums = one || dtype == at::kDouble ? dtype : at::kFloat,
          .each_pass = is_shared && pipeline.size == 1,
          .sets_aside = is_shared && config.memory.has_tiers() && pipeline.size > 1 &&
                        !(one && pipeline.schedule == "1f1b")};  // the only pass produces all gradients on the device
}

}  // namespace colossal::train
